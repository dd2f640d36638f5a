import pytest

from environments.shipped.harbor_tasks.file_filter import FileFilter
from tests.tables import cases


def rule(workdir="/app", search_path=("/usr/bin", "/root/miniconda3/bin", "/custom"), **given):
    known = {"declared": (), "image": {"/var/lib/pam", "/var/cache/man", "/var/lib/app"}, "solution": ""}
    return FileFilter(workdir=workdir, search_path=search_path, **known | given)


@cases(
    "path",
    ["/", "/bin/sh", "/usr/local/bin/x", "/lib64/ld.so", "/etc/profile", "/opt/tools/pytest", "/tests/x",
     "/logs/verifier/x", "/root/.bashrc", "/home/me/.config/x", "/app/conftest.py", "/app/.venv/bin/python",
     "/x/site-packages/a.py", "/app/__pycache__/a.pyc", "/app/.git/hooks/post", "/app/x.pth", "/custom/run",
     "/root/miniconda3/lib/x", "/var/lib/dpkg/info/a.postinst", "/var/cache/apt/x", "/var/lib/pam/seen",
     "/var/cache/man/x",
     "/proc/1/mem"],
)  # fmt: skip
def test_tools_are_those_of_the_clean_image(path):
    assert not rule().has(path)


@cases(
    "path",
    [".coveragerc", ".babelrc", ".mocharc.json", ".yarnrc.yml", ".npmrc", ".proverc", ".envrc", ".env",
     ".pnp.cjs", ".pnpmfile.cjs", ".mise.toml", ".isort.cfg", ".iex.exs", ".python-version", ".Renviron",
     ".ghc.environment.x86_64", ".rspec", ".gdbinit", ".bundle/config", ".mvn/jvm.config",
     ".config/nextest.toml",
     ".yarn/releases/yarn.cjs", "jest.config.js", "jest.setup.ts", "vitest.workspace.ts", "babel.config.json",
     "vite.config.mts", "karma.conf.js", "uv.toml", "tox.toml", "ruff.toml", "rust-toolchain", "noxfile.py",
     "mypy.ini", "nose2.cfg", "phpunit.xml.dist", "deno.json", "matplotlibrc", "gems/a/b.rb",
     ".hg/hgrc-not-shared"],
)  # fmt: skip
@pytest.mark.parametrize("folder", ["/app", "/srv/a.rc/b"])
def test_settings_that_tools_look_for_come_only_where_the_solution_names_them(path, folder):
    assert not rule().has(f"{folder}/{path}")
    is_known = path in (".npmrc", ".rspec", ".mise.toml")
    assert is_known or rule(solution=f"# writes {path} and a.rc").has(f"{folder}/{path}")


@cases(
    "path",
    ["/app/main.py", "/app/bin/x", "/app/src/a.c", "/app/.gitignore", "/app/.git/index",
     "/app/.github/ci.yml",
     "/app/package.json", "/app/Makefile", "/app/mypy/a.py", "/app/nginx.conf", "/app/.hidden", "/answer.txt",
     "/library/x", "/root/work", "/srv/x", "/tmp/x", "/home/me/x", "/mnt/x", "/var/lib/x",
     "/var/www/index.html",
     "/var/log/x", "/var/spool/cron/crontabs/root", "/data/x"],
)  # fmt: skip
def test_what_the_agent_works_on_comes(path):
    assert rule().has(path)


@cases(
    "workdir",
    ["/opt/app", "/usr/src/app", "/usr/local/tomcat/x", "/usr/share/nginx/html", "/root", "/var/lib/app"],
)
def test_a_working_directory_among_programs_comes(workdir):
    known = rule(workdir, ("/usr/bin", "/usr/local/bin"))
    assert known.has(f"{workdir}/main.c")
    assert known.has_below("/" + workdir.split("/")[1])
    assert not known.has("/usr/bin/cc")


@cases("workdir", ["/", "/usr", "/usr/bin", "/usr/local/lib/x", "/etc", "/opt"])
def test_no_working_directory_brings_the_tools_themselves(workdir):
    assert not rule(workdir, ("/usr/bin",)).has("/usr/bin/cc")
    assert not rule(workdir, ("/usr/bin",)).has("/opt/x")


@cases("path", ["/tmp/node-compile-cache/v24/a", "/tmp/jest_rs/a", "/tmp/a/phpstan-cache/a.php"])
def test_caches_of_tools_come_only_where_the_solution_names_them(path):
    assert not rule().has(path)


def test_state_of_packages_comes_where_the_solution_names_it():
    known = rule(solution="cp /solution/x /var/lib/app/x")
    assert known.has("/var/lib/app/x")


def test_of_what_is_declared_settings_below_it_stay_and_one_that_is_declared_itself_comes():
    known = rule(declared=["/app", "/etc/app.conf", "/usr/x/conftest.py"])
    assert [known.has(path) for path in ("/app/a", "/etc/app.conf", "/usr/x/conftest.py")] == [True] * 3
    assert [known.has(path) for path in ("/app/conftest.py", "/etc/x", "/srv/a")] == [False] * 3
    assert known.has_below("/etc")


def test_a_branch_of_a_repository_of_the_image_comes():
    assert rule(image={"/app/.git/refs", "/app/.git/objects"}).has("/app/.git/refs/heads/main")


def test_settings_of_a_repository_of_any_name_stay_those_of_the_clean_image():
    known = rule(changed=["/app/g/objects/x", "/app/g/refs"])
    assert not known.has("/app/g/config")
    assert known.has("/app/g/HEAD")
