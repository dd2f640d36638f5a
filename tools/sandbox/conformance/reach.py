"""Checks 121 to 124: what the host lends shows nothing of its own, and the kernel's side doors are shut."""

import os
import secrets
from collections.abc import Generator, Iterable
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tools.sandbox.conformance.bench import Bench, host_status, marker, sleeper
from tools.sandbox.conformance.checks import check, equal, holds

_SETTINGS = ("/usr/local/etc", "/usr/etc")
_MODULES = "tools environments turnwise environments.code_debug_env environments.rewards.code_judge"
_IMPORTS = f"""
import importlib
for name in "{_MODULES}".split():
    try: print(importlib.import_module(name).__file__)
    except ImportError: pass
"""
_SOCKETS = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
def made(call, family, kind, protocol):
    answer = (ctypes.c_int * 2)()
    return call(family, kind, protocol, answer) >= 0 or ctypes.get_errno() != 97
for family in range(1, 64):
    if any(made(libc.socket, family, kind, 0) for kind in (1, 2, 3, 5)):
        print(family)
for protocol in range(1, 32):
    if made(libc.socket, 16, 3, protocol):
        print('netlink', protocol)
for family in range(2, 64):
    if any(made(libc.socketpair, family, kind, 0) for kind in (1, 2, 5)):
        print('pair', family)
"""
_OTHER_NUMBERS = """
import ctypes, mmap, os
libc = ctypes.CDLL(None, use_errno=True)
long = ctypes.c_long
def refused(number, *arguments):
    return 'refused' if libc.syscall(long(number), *map(long, arguments)) < 0 else 'done'
print(refused(425, 1, 0))  # io_uring_setup
if os.uname().machine == 'x86_64':
    print(refused(0x40000000 + 39))  # getpid of x32
    page = mmap.mmap(-1, 4096, prot=7)
    # mov eax, 20 (getpid of i386); int 0x80; ret
    page.write(bytes((0xB8, 20, 0, 0, 0, 0xCD, 0x80, 0xC3)))
    call = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))
    pid = os.fork()
    if pid == 0:
        os._exit(call() > 0)
    print('refused' if os.waitpid(pid, 0)[1] != 256 else 'done')
"""


@check(121)
async def nothing_that_a_person_installed_can_be_read(bench: Bench) -> None:
    """This package, installed environments and the settings of programs below /usr are out of reach."""
    imported = (await bench.python(_IMPORTS)).text().split()
    equal("what can be imported of it", [path for path in imported if path != "None"], [])
    with ExitStack() as there:
        files = [Path(__file__), *_settings()]
        files += [
            there.enter_context(_secret_in(folder)) for folder in _SETTINGS if os.access(folder, os.W_OK)
        ]
        for path, content in _contents(files).items():
            found = await bench.sandbox.exec(["cat", path])
            holds(f"the host's {path} is not there", found.stdout != content)


@check(122, gives=("system_calls",))
async def only_usual_sockets_are_there(bench: Bench) -> None:
    """Sockets are UNIX, IPv4, IPv6 or NETLINK_ROUTE; every other family and pair is EAFNOSUPPORT."""
    usual = ["2", "10", "16"]
    if bench.gives("unix_sockets"):
        usual.insert(0, "1")
    equal("families", (await bench.python(_SOCKETS)).text().split(), usual)


@check(123, gives=("system_calls",))
async def no_other_numbers_of_calls_pass_the_filter(bench: Bench) -> None:
    """io_uring is refused, and so are the 32-bit and x32 calls of a 64-bit processor."""
    seen = (await bench.python(_OTHER_NUMBERS)).text().split()
    equal("calls", seen, ["refused"] * len(seen))
    holds("some were tried", bool(seen))


@check(124)
async def a_shortage_of_memory_ends_agents_first(bench: Bench) -> None:
    """Programs of the agent are killed before the host's, and cannot say otherwise."""
    pid = await sleeper(bench.sandbox, marker())
    score = _score(pid)
    holds(f"its score ({score}) is above the host's ({_score(os.getpid())})", score > _score(os.getpid()))
    equal(
        "in the shell", (await bench.sandbox.shell("cat /proc/$$/oom_score_adj")).text().strip(), str(score)
    )
    if bench.gives("oom_score"):
        lower = "cd /proc/self; for n in 0 -1000 499; do echo $n >oom_score_adj; done; cat oom_score_adj"
        equal("after it lowered it", (await bench.sandbox.exec(lower)).text().strip(), str(score))
    holds("it lives", bool(host_status(pid, "State")))


def _score(pid: int) -> int:
    return int(Path(f"/proc/{pid}/oom_score_adj").read_text())


def _settings() -> list[Path]:
    return [path for folder in _SETTINGS for path in Path(folder).glob("*")]


def _contents(files: Iterable[Path]) -> dict[str, bytes]:
    """By path, the content of those that the host can read."""
    return {str(path): path.read_bytes() for path in files if path.is_file() and os.access(path, os.R_OK)}


@contextmanager
def _secret_in(folder: str) -> Generator[Path]:
    path = Path(folder, f"turnwise-check-{secrets.token_hex(8)}")
    path.write_text(secrets.token_hex(16))
    path.chmod(0o644)
    try:
        yield path
    finally:
        path.unlink()
