"""Some 130 small tasks in Harbor's format with their solutions, and what each solution scores.

`python tests/environments/shipped/harbor_tasks/oracle_tasks.py FILE` plays them with the code on `PYTHONPATH`, so that two versions
can be compared: it adds a line with name and score of each task to the file, and skips those that it has.
"""

# ruff: noqa: E501  # a task is a line

import asyncio
import json
import shlex
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from environments.shipped.harbor_tasks import HarborTasksEnv
from environments.shipped.harbor_tasks.env import HarborTasksConfig

IMAGE = "turnwise-test"
PLACES = ["/app", "/root", "/home/me/work", "/srv/a b", "/tmp/work", "/opt/work", "/data", "/var/www/html"]
SQL = "python3 -c \"import sqlite3; c = sqlite3.connect('a.db'); c.execute('{}'); c.commit()\""
KINDS = {
    "text": ("echo 42 > answer.txt", "grep -qx 42 answer.txt"),
    "program": ("printf '#!/bin/sh\\necho hi\\n' > run; chmod 755 run", "test \"$(./run)\" = hi"),
    "module": ("mkdir -p src; echo 'def double(n): return 2 * n' > src/calc.py", "python3 -c 'import sys; sys.path.insert(0, \"src\"); import calc; assert calc.double(2) == 4'"),
    "database": (SQL.format("create table t (n)"), SQL.format("insert into t values (1)")),
    "repository": ("git init -q r && cd r && echo x > a && echo b > .gitignore && git add . && git -c user.name=a -c user.email=a@b commit -qm first", "cd r && test \"$(git log --format=%s)\" = first && test -z \"$(git status --porcelain)\""),
    "tree": ("mkdir -p t/u/v t/.hidden; echo 1 | tee t/a t/u/b t/u/v/.c t/.hidden/d > /dev/null; cp -a t copy", "diff -r t copy && test -f copy/u/v/.c && test -f copy/.hidden/d"),
    "link": ("mkdir -p d; echo 1 > d/a; ln -s d/a l; ln -s d e; ln -s \"$PWD/d/a\" f; ln d/a h", "grep -q 1 l && grep -q 1 e/a && grep -q 1 f && test h -ef d/a"),
    "names": ("touch 'a b' 'c=d'; mkdir empty; chmod 700 empty", "test -e 'a b' && test -e 'c=d' && test -d empty"),
}  # fmt: skip
SPECIAL = {
    # solution, condition, setup of the image, more of task.toml
    "removed": ("rm old", "! test -e old", "touch old"),
    "removed_folder": ("rm -rf old", "! test -e old", "mkdir -p old/a; touch old/a/b"),
    "changed": ("sed -i s/1/2/ old", "grep -qx 2 old", "echo 1 > old"),
    "mode": ("chmod 755 old", "test -x old", "touch old"),
    "owner": ("chown -R nobody old", "test $(stat -c %U old) = nobody", "mkdir old"),
    "binary": ("head -c 5000000 /dev/zero > b", "test $(stat -c %s b) = 5000000"),
    "empty": ("touch e", "test -f e && ! test -s e"),
    "deep": ("mkdir -p a/b/c/d/e/f/g; echo 1 > a/b/c/d/e/f/g/h", "grep -q 1 a/b/c/d/e/f/g/h"),
    "many": ("for n in $(seq 500); do echo $n > f$n; done", "test $(ls | wc -l) -ge 500"),
    "top_file": ("echo 1 > /answer.txt", "grep -q 1 /answer.txt"),
    "top_folder": ("mkdir /results; echo 1 > /results/a", "grep -q 1 /results/a"),
    "home": ("mkdir -p /home/me; echo 1 > /home/me/notes", "grep -q 1 /home/me/notes"),
    "srv": ("echo 1 > /srv/a", "grep -q 1 /srv/a"),
    "tmp": ("echo 1 > /tmp/a", "grep -q 1 /tmp/a"),
    "root": ("echo 1 > /root/a", "grep -q 1 /root/a"),
    "var_log": ("echo 1 > /var/log/a.log", "grep -q 1 /var/log/a.log"),
    "var_tmp": ("echo 1 > /var/tmp/a", "grep -q 1 /var/tmp/a"),
    "var_lib_new": ("mkdir /var/lib/mine; cd /var/lib; echo 1 > mine/a", "grep -q 1 /var/lib/mine/a"),
    "var_lib_old": ("echo 1 > /var/lib/mine/a", "grep -q 1 /var/lib/mine/a", "mkdir /var/lib/mine"),
    "var_lib_service": ("cd /var/lib; echo 1 > mine/a", "grep -q 1 /var/lib/mine/a", "mkdir /var/lib/mine; chown nobody /var/lib/mine"),
    "var_own": ("mkdir /var/data; echo 1 > /var/data/a", "grep -q 1 /var/data/a"),
    "spool": ("mkdir -p /var/spool/cron/crontabs; echo '* * * * * true' > /var/spool/cron/crontabs/root", "grep -q true /var/spool/cron/crontabs/root"),
    "mail": ("mkdir -p /var/mail; echo hi > /var/mail/root", "grep -q hi /var/mail/root"),
    "package_json": ("echo '{\"name\": \"a\", \"version\": \"1.0.0\"}' > package.json", "grep -q 1.0.0 package.json"),
    "makefile": ("printf 'all:\\n\\techo built > out\\n' > Makefile", "sh -c 'command -v make > /dev/null && make -s; test -f Makefile'"),
    "dockerfile": ("echo 'FROM scratch' > Dockerfile; echo x > .dockerignore", "test -f Dockerfile && test -f .dockerignore"),
    "env_file": ("echo A=1 > .env", "grep -q A=1 .env"),
    "htaccess": ("echo Deny > .htaccess", "grep -q Deny .htaccess"),
    "editorconfig": ("echo root=true > .editorconfig", "test -f .editorconfig"),
    "eslintrc": ("echo '{}' > .eslintrc.json", "test -f .eslintrc.json"),
    "webpack": ("echo 'module.exports = {}' > webpack.config.js", "test -f webpack.config.js"),
    "tsconfig": ("echo '{}' > tsconfig.json", "test -f tsconfig.json"),
    "requirements": ("echo numpy > requirements.txt; echo 'import setuptools' > setup.py", "test -f requirements.txt && test -f setup.py"),
    "cargo": ("mkdir src; echo '[package]' > Cargo.toml; echo 'fn main() {}' > src/main.rs", "test -f Cargo.toml && test -f src/main.rs"),
    "gomod": ("echo 'module a' > go.mod; echo 'package main' > main.go", "test -f go.mod"),
    "workflow": ("mkdir -p .github/workflows; echo 'on: push' > .github/workflows/ci.yml", "test -f .github/workflows/ci.yml"),
    "nginx_conf": ("echo 'server {}' > nginx.conf; mkdir conf.d; touch conf.d/a.conf", "test -f nginx.conf && test -f conf.d/a.conf"),
    "yaml": ("echo 'a: 1' > docker-compose.yaml; echo 'a: 1' > .gitlab-ci.yml", "test -f docker-compose.yaml && test -f .gitlab-ci.yml"),
    "from_script": ("python3 /solution/write.py", "test -f .env.example && test -f .tool-versions"),
    "copied": ("cp -r /solution/made/. .", "test -f .babelrc && test -f src/.coveragerc"),
    "archive": ("tar xf given.tar", "test -f t/.hidden/a && test -f t/b.txt", "mkdir -p t/.hidden; touch t/.hidden/a t/b.txt; tar cf given.tar t; rm -r t"),
    "checkout": ("git checkout -q good", "test -f .gitignore && test -f a.txt && test -z \"$(git status --porcelain)\"", "git init -q . && git config user.name a && git config user.email a@b && echo 1 > b.txt && git add . && git commit -qm 1 && git checkout -qb good && touch .gitignore .gitattributes a.txt && git add . && git commit -qm 2 && git checkout -q -"),
    "merge": ("git merge -q good", "test -f a.txt && git log --oneline | grep -q 2", "git init -q . && git config user.name a && git config user.email a@b && echo 1 > b.txt && git add . && git commit -qm 1 && git checkout -qb good && touch a.txt && git add . && git commit -qm 2 && git checkout -q -"),
    "bare": ("git init -q --bare repo.git", "git -C repo.git rev-parse --is-bare-repository | grep -q true"),
    "link_to_image": ("ln -s /etc/debian_version v", "grep -q . v"),
    "link_to_program": ("mkdir bin; ln -s /usr/bin/python3 bin/py", "bin/py -c 'print(1)'"),
    "link_is_judged": ("mkdir -p x; ln -s /opt/releases/v2 current", "test \"$(readlink current)\" = /opt/releases/v2", "mkdir -p /opt/releases/v2"),
    "link_between": ("echo 1 > /srv/page; ln -s /srv/page index", "grep -q 1 index"),
    "link_to_unchanged": ("ln -s given l", "grep -q 1 l", "echo 1 > given"),
    "link_replaced": ("rm current; ln -s v2 current", "grep -q 2 current/n", "mkdir v1 v2; echo 1 > v1/n; echo 2 > v2/n; ln -s v1 current"),
    "link_relative_up": ("mkdir a b; echo 1 > a/f; ln -s ../a/f b/f", "grep -q 1 b/f"),
    "libraries": ("mkdir lib; echo x > lib/libx.so.1.2; ln -s libx.so.1.2 lib/libx.so.1; ln -s libx.so.1 lib/libx.so", "grep -q x lib/libx.so"),
    "pipe": ("mkfifo pipe", "test -p pipe"),
    "bytes": ("printf '\\000\\377' > raw", "test $(stat -c %s raw) = 2"),
    "sparse": ("truncate -s 3M s; echo 1 >> s", "test $(stat -c %s s) = 3145730"),
    "zip": ("python3 -c \"import zipfile; zipfile.ZipFile('a.zip', 'w').writestr('b', 'c')\"", "python3 -c \"import zipfile; assert zipfile.ZipFile('a.zip').read('b') == b'c'\""),
    "json": ("echo '{\"a\": [1, 2]}' > out.json", "python3 -c \"import json; assert json.load(open('out.json'))['a'] == [1, 2]\""),
    "csv": ("mkdir -p output; printf 'a,b\\n1,2\\n' > output/table.csv", "grep -q 1,2 output/table.csv"),
    "key": ("mkdir ssl; echo key > ssl/server.key; chmod 600 ssl/server.key", "test $(stat -c %a ssl/server.key) = 600"),
    "cache_folder": ("mkdir cache; echo 1 > cache/a; echo 'x = 1' > cache.py", "test -f cache/a && test -f cache.py"),
    "tmp_cache": ("mkdir -p /tmp/cache; echo 1 > /tmp/cache/a", "test -f /tmp/cache/a"),
    "setuid": ("printf x > p; chmod 4755 p", "test -u p"),
    "declared": ("echo 1 > /etc/app.conf", "grep -q 1 /etc/app.conf", "true", 'artifacts = ["/etc/app.conf"]'),
    "declared_folder": ("mkdir -p /opt/x; echo 1 > /opt/x/a; echo 1 > /srv/no", "grep -q 1 /opt/x/a && ! test -e /srv/no", "true", 'artifacts = ["/opt/x"]'),
    "declared_settings": ("touch conftest.py", "test -e conftest.py", "true", 'artifacts = ["/app/conftest.py"]'),
    "declared_link": ("mkdir out; echo 1 > out/a; ln -s a out/b", "grep -q 1 out/b", "true", 'artifacts = ["/app/out"]'),
    "separate": ("mkdir -p /srv/out; echo 42 > /srv/out/a", "grep -qx 42 /srv/out/a", "true", 'artifacts = ["/srv/out"]\n[verifier]\nenvironment_mode = "separate"'),
    "published": ("mkdir -p /logs/artifacts; echo 42 > /logs/artifacts/a", "grep -qx 42 /logs/artifacts/a", "true", '[verifier]\nenvironment_mode = "separate"'),
    "variables": ("echo $LEVEL > level", "grep -qx 3 level && test $LEVEL = 3", "", '[environment.env]\nLEVEL = "3"'),
    "as_user": ("echo 1 > a", "test $(id -un) = nobody && grep -q 1 a", "", '[verifier]\nuser = "nobody"'),
    # What these need did not come before, either.
    "tool": ("printf '#!/bin/sh\\n' > /usr/local/bin/tool; chmod 755 /usr/local/bin/tool", "command -v tool"),
    "etc": ("echo 1 > /etc/app.conf", "test -f /etc/app.conf"),
    "pyproject": ("echo '[project]' > pyproject.toml", "test -f pyproject.toml"),
    "dot_home": ("echo alias > /root/.bash_aliases", "test -f /root/.bash_aliases"),
}  # fmt: skip
NEED_MORE = ("tool", "etc", "pyproject", "dot_home", "link_root")
"""Tasks whose solutions need what does not come: hard links in a folder of the image are copies, too."""
MORE_FILES = {
    "from_script": {"write.py": "for n in ('.env.example', '.tool-versions'): open(n, 'w').write('x')\n"},
    "copied": {"made/.babelrc": "{}", "made/src/.coveragerc": "[run]"},
}


def write_tasks(root: Path, is_wanted: Callable[[str], bool]) -> list[str]:
    """Write the tasks that are wanted; returns their names."""
    listed = {
        f"{kind}_{place.strip('/').replace('/', '_').replace(' ', '_')}": (place, solve, test)
        for place in PLACES
        for kind, (solve, test) in KINDS.items()
    } | {name: ("/app", *parts) for name, parts in SPECIAL.items()}
    for name, (workdir, solve, test, *rest) in listed.items():
        if is_wanted(name):
            _write(root / name, workdir, solve, test, *rest)
    return [*filter(is_wanted, listed)]


def _write(folder: Path, workdir: str, solve: str, test: str, setup: str = "", toml: str = "") -> None:
    machine = "" if setup else f'docker_image = "{IMAGE}"\n'
    work = shlex.quote(workdir)
    top, _, rest = toml.partition("\n")
    tables = toml if top.startswith("[") else rest
    files = {
        "task.toml": f"{'' if top.startswith('[') else top}\n[agent]\ntimeout_sec = 60\n[environment]\n{machine}"
        f"workdir = {json.dumps(workdir)}\n{tables}\n",
        "instruction.md": f"Do {folder.name}.\n",
        "solution/solve.sh": f"#!/bin/bash\nset -e\ncd {work}\n{solve}\n",
        "tests/test.sh": f"#!/bin/bash\ncd {work}\nif ({test}) > /dev/null; then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n",
        **{f"solution/{path}": text for path, text in MORE_FILES.get(folder.name, {}).items()},
    }
    if setup:
        files["environment/Dockerfile"] = f"FROM {IMAGE}\nWORKDIR {workdir}\nRUN {setup}\n"
    for path, text in files.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)


async def scores(root: Path, *, at_once: int = 2, found: Callable[[str, float | None], None]) -> None:
    """Play the solution of each task; `found` gets its score, or `None` where its rollout is missing."""
    config = HarborTasksConfig(tasks=root, scripted_skill=1.0, max_concurrent_rollouts=at_once)
    async with HarborTasksEnv(config) as env:
        for played in asyncio.as_completed([env.rollout_group(task, 1) for task in env.tasks()]):
            group = await played
            found(group.item_id, next((each.score for each in group.trajectories), None))


def main(output: Path) -> None:
    """Add what is missing in a file."""
    output.touch()
    known = {line.partition(" ")[0] for line in output.read_text().splitlines()}
    with tempfile.TemporaryDirectory() as made, output.open("a", buffering=1) as file:
        if write_tasks(Path(made), lambda name: name not in known):
            asyncio.run(scores(Path(made), found=lambda name, score: print(name, score, file=file)))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
