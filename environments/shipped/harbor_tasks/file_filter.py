"""The agent's files that are copied into the machine of a verdict."""

import posixpath
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePosixPath

_OF_SYSTEM = re.compile(
    r"/(bin|boot|dev|etc|lib(32|64|x32)?|logs|opt|proc|run|sbin|snap|solution|sys|tests|usr|verifier)?(/|$)"
)
"""The root and the FHS folders of programs, libraries and settings; only other folders are copied."""
_WORK_AMONG_PROGRAMS = re.compile(
    r"/(opt|usr/src)/.|/usr/(local|share)/(?!(bin|etc|games|include|lib|libexec|man|sbin|share|src)(/|$))."
)
"""Working directories inside system folders, which are copied."""
_NEVER = re.compile(
    r"/(root|home/[^/]+)/\.[^/]|/var/(lib|cache)/(apt|debconf|dpkg)(/|$)|(.*/)?(\.git/(hooks|config)|__pycache__|(site|dist)-packages|node_modules|\.?venv"
    r"|(conftest|sitecustomize|usercustomize)\.py|\.?pytest\.(ini|toml)|tox\.ini|setup\.cfg|pyproject\.toml"
    r"|[^/]+\.pth|\.cargo|\.npmrc|bunfig\.toml|\.gitconfig|hgrc|\.Rprofile|\.rspec|\.bashrc|\.(bash_)?profile)(/|$)"
)
"""Files that interpreters, test runners and shells read wherever they find them."""
_UNLESS_NAMED = re.compile(
    r"(?:^|/)(\.[^/]*rc(?:\.[^/]+)?|\.[^/.]+\.(?:[cm]?js|cfg|conf|exs|ini|rb|toml)"
    r"|\.[^/]*(?:env|environment[^/]*|init|opts|profile|versions?)|\.(?:Renviron|RData|busted|erlang|flake8|ghci)"
    r"|\.(?:bundle|config|mvn|yarn)(?=/.)|gems(?=/.)|[^/]+\.conf(?:ig)?\.(?:[cm]?[jt]sx?|json5?|py|toml|ya?ml)"
    r"|(?:jest|vitest)[.-][^/]*\.[^/]+|(?:hatch|mise|pdm|poetry|ruff|tox|uv|rust-toolchain)\.toml|rust-toolchain"
    r"|(?:mypy|behave)\.ini|(?:pylint|matplotlib)rc(?:\.toml)?|(?:nose2?|unittest)\.cfg|noxfile\.py"
    r"|deno\.jsonc?|jasmine\.json|phpunit[^/]*\.xml[^/]*|hgrc[^/]+|(?<=/tmp/)(?:(?:.*/)?[^/]*cache[^/]*|jest_[^/]*))(?=/|$)"
)
"""Settings by the form of their names: dot-files, `*rc`, `*.config.*`; copied if the solution names them."""
_STATE = re.compile(r"/var/(?:lib|cache)/[^/]+")
_OF_GIT = ("config", "config.worktree", "hooks")
"""Settings of git in a repository with any name, since `.git` may be a link to it."""


@dataclass(frozen=True, kw_only=True)
class FileFilter:
    declared: Sequence[str]
    """Artefacts that the task declares, if any: then only they are copied."""
    workdir: str
    search_path: Sequence[str]
    image: Collection[str]
    solution: str
    """The text of the task's solution: settings that it names are the task's subject."""
    changed: Collection[str] = ()

    def has(self, path: str) -> bool:
        if self.declared:
            return any(is_below(path, each) and self._is_plain(path, each) for each in self.declared)
        if any(is_below(path, each) for each in self.programs) or not self._is_plain(path):
            return False
        if is_below(path, self.workdir) and _WORK_AMONG_PROGRAMS.match(self.workdir):
            return True
        if (state := _STATE.match(path)) and state[0] in self.image:
            return state[0] in self.solution or is_below(self.workdir, state[0])
        return not _OF_SYSTEM.match(path)

    def has_below(self, path: str) -> bool:
        return any(is_below(each, path) for each in self.declared or [self.workdir])

    @cached_property
    def programs(self) -> list[str]:
        environments = [
            posixpath.dirname(path) + "/bin" for path in self.image if path.endswith("/pyvenv.cfg")
        ]
        found = list[str]()
        for folder in filter(posixpath.isabs, [*environments, *self.search_path]):
            above = posixpath.dirname(folder)
            is_prefix = above != "/" and posixpath.basename(folder) in ("bin", "sbin")
            found.append(above if is_prefix and not is_below(self.workdir, above) else folder)
        return found

    @cached_property
    def _repositories(self) -> set[str]:
        """Folders with `objects` and `refs`, which git takes for repositories."""
        shown = {"objects": set[str](), "refs": set[str]()}
        for path in (*self.image, *self.changed):
            at = PurePosixPath(path)
            for each in (at, *at.parents):
                if each.name in shown:
                    shown[each.name].add(str(each.parent))
        return shown["objects"] & shown["refs"]

    def _is_plain(self, path: str, top: str = "") -> bool:
        """Whether no tool reads a file of this name below `top` unasked."""
        name = path[len(top) :]
        if _NEVER.match(name) or not all(each[1] in self.solution for each in _UNLESS_NAMED.finditer(name)):
            return False
        at = PurePosixPath(path)
        return not any(
            each.name in _OF_GIT
            and str(each.parent) in self._repositories
            and len(str(each.parent)) > len(top)
            for each in (at, *at.parents)
        )


def is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(f"{folder.rstrip('/')}/")
