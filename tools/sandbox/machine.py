"""What this machine lends to every sandbox: an interpreter, the compiled supervisor and unused user ids."""

import json
import marshal
import os
import secrets
import subprocess
import sys
from functools import cache
from pathlib import Path

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
ENVIRONMENT = {"PATH": SYSTEM_PATH, "LANG": "C.UTF-8"}
"""All that a supervisor inherits: whatever process 1 has, the agent's side could come to see."""
UID_BASE, UID_COUNT = 0x70000000, 0x0FFF0000
"""Host users that no distribution and no container manager hands out."""

_INSIDE = Path(__file__).parent / "inside"
_MODULES = (
    "frames",
    "boot",
    "signals",
    "capture",
    "watch",
    "processes",
    "account",
    "spawn",
    "files",
    "tar",
    "archives",
    "memory",
    "shell",
    "rights",
    "operations",
    "job",
    "supervisor",
)
_OLDEST_PYTHON = (3, 9)
_SYSTEM_PYTHON = "/usr/bin/python3"

_VERSION = "import sys;print(*sys.version_info[:2])"
_COMPILE = (
    "import json,marshal,sys;sys.stdout.buffer.write(marshal.dumps("
    "[(n,compile(s,n,'exec',dont_inherit=True,optimize=2)) for n,s in json.load(sys.stdin)]))"
)
BOOTSTRAP = """
import marshal,os,sys
code,control=int(sys.argv[1]),int(sys.argv[2])
M=type(sys)
for n in ('tools','tools.sandbox','tools.sandbox.inside'):
 m=sys.modules[n]=M(n);m.__path__=[]
for n,c in marshal.loads(os.pread(code,os.fstat(code).st_size,0)):
 m=sys.modules[n]=M(n);exec(c,m.__dict__)
os.close(code)
# What a child must not have is closed up to some number, and the host's may be beyond it.
low=os.dup(control)
os.close(control)
m.enter(low)
"""

CONTAINER_BOOTSTRAP = """
import marshal,os,sys
try:os.kill(-1,9)
except OSError:pass
control,reply=os.dup(0),os.dup(1)
nowhere=os.open('/dev/null',os.O_RDWR)
os.dup2(nowhere,0)
os.dup2(nowhere,1)
os.close(nowhere)
def read(n):
 b=b''
 while len(b)<n:
  d=os.read(control,n-len(b))
  if not d:os._exit(0)
  b+=d
 return b
M=type(sys)
for n in ('tools','tools.sandbox','tools.sandbox.inside'):
 m=sys.modules[n]=M(n);m.__path__=[]
for n,s in marshal.loads(read(int.from_bytes(read(4),'big'))):
 m=sys.modules[n]=M(n);exec(compile(s,n,'exec',dont_inherit=True),m.__dict__)
m.enter(control,reply)
"""
"""Takes requests from stdin and answers on stdout. It first kills whatever an earlier supervisor left."""


@cache
def interpreter() -> str:
    """The Python that runs the supervisor: the system's, or ours where that one is missing or too old."""
    if Path(_SYSTEM_PYTHON).exists():
        found = subprocess.run(
            [_SYSTEM_PYTHON, "-I", "-S", "-c", _VERSION], capture_output=True, text=True, check=False
        )
        if found.returncode == 0 and tuple(map(int, found.stdout.split())) >= _OLDEST_PYTHON:
            return _SYSTEM_PYTHON
    return str(Path(sys.base_prefix, "bin", f"python{sys.version_info[0]}.{sys.version_info[1]}"))


def extra_directories() -> tuple[str, ...]:
    """Directories outside `/usr` that the interpreter needs."""
    prefix = Path(sys.base_prefix)
    needed = interpreter() != _SYSTEM_PYTHON and not prefix.is_relative_to("/usr")
    return (str(prefix),) if needed else ()


def search_path() -> str:
    """`PATH` inside; `python3` is always on it."""
    if Path(_SYSTEM_PYTHON).exists():
        return SYSTEM_PATH
    return f"{SYSTEM_PATH}:{Path(sys.base_prefix, 'bin')}"


@cache
def supervisor_code(extra: tuple[str, ...]) -> int:
    """A descriptor of the compiled supervisor, shared by all sandboxes of this process.

    Compiling costs more than starting; it is done once, by the interpreter that runs the result.

    Args:
        extra: modules besides the supervisor's own; the last of all is the one that is entered.
    """
    modules = (*_MODULES, *extra)
    sources = [(f"tools.sandbox.inside.{name}", (_INSIDE / f"{name}.py").read_text()) for name in modules]
    made = subprocess.run(
        [interpreter(), "-I", "-S", "-c", _COMPILE],
        input=json.dumps(sources).encode(),
        capture_output=True,
        check=True,
    )
    return memory_file(made.stdout)


@cache
def container_code() -> bytes:
    """The supervisor's source for `CONTAINER_BOOTSTRAP`: the interpreter of a container is not known here."""
    modules = (*_MODULES, "prctl", "contain")
    sources = [(f"tools.sandbox.inside.{name}", (_INSIDE / f"{name}.py").read_text()) for name in modules]
    # The oldest format: every interpreter reads it.
    code = marshal.dumps(sources, 2)
    return len(code).to_bytes(4, "big") + code


def memory_file(data: bytes) -> int:
    """A descriptor of an unnamed file with this content, read from its start."""
    fd = os.memfd_create("turnwise", os.MFD_CLOEXEC)
    with open(fd, "wb", closefd=False) as file:
        file.write(data)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def unused_uid() -> int:
    """A host user for one sandbox, so that process counts and signals of two sandboxes never meet.

    It is drawn at random from ids that nobody hands out; in a container with few ids, from their upper half.
    """
    first, count = max(_mapped_ids(), key=lambda extent: extent[1])
    if first <= UID_BASE and first + count >= UID_BASE + UID_COUNT:
        return UID_BASE + secrets.randbelow(UID_COUNT)
    return first + count // 2 + secrets.randbelow(max(1, count // 2))


@cache
def _mapped_ids() -> list[tuple[int, int]]:
    lines = Path("/proc/self/uid_map").read_text().splitlines()
    return [(int(inside), int(count)) for inside, _, count in (line.split() for line in lines)]
