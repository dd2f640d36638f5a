"""Checks 83 to 92 and 121 to 124: nothing of the host is visible, reachable or gained."""

import os
import secrets
import socket
from contextlib import ExitStack
from pathlib import Path

from tools.sandbox.conformance.checks import (
    Bench,
    check,
    equal,
    holds,
    host_file,
    host_status,
    marker,
    raises,
    sleeper,
)

_REACH = """
import socket, sys
def tries(make):
    try: make()
    except OSError: return 'shut'
    return 'open'
port, name = int(sys.argv[1]), sys.argv[2]
tcp = lambda host, port: tries(lambda: socket.create_connection((host, port), 2))
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
unix = socket.socket(socket.AF_UNIX)
print(tcp('127.0.0.1', port), tcp('169.254.169.254', 80), tcp('1.1.1.1', 53),
      tries(lambda: udp.sendto(b'x', ('1.1.1.1', 53))), tries(lambda: socket.getaddrinfo('example.com', 80)),
      tries(lambda: unix.connect('\\0' + name)))
"""
_LOOPBACK = """
import socket
server = socket.create_server(('127.0.0.1', 0))
client = socket.create_connection(server.getsockname(), 5)
server.accept()[0].sendall(b'on')
print(client.recv(2).decode())
"""
_SYSTEM_CALLS = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
numbers = {'x86_64': (321, 250, 101), 'aarch64': (280, 219, 117)}[os.uname().machine]
bpf, keyctl, ptrace = numbers
for call in ((bpf, 0, 0, 0), (keyctl, 0, -3, 1), (ptrace, 16, 1, 0, 0)):
    print('done' if libc.syscall(*map(ctypes.c_long, call)) >= 0 else 'refused')
"""
_TERMINAL = """
import fcntl, os
try:
    fd = os.open('/dev/tty', os.O_RDWR)
    fcntl.ioctl(fd, 0x5412, b'x')
    print('typed')
except OSError:
    print('refused')
"""


@check(83, "Internet, host loopback, abstract sockets and metadata are out of reach.", gives=("network",))
async def there_is_no_network(bench: Bench) -> None:
    name = f"turnwise-{secrets.token_hex(8)}"
    with socket.create_server(("127.0.0.1", 0)) as tcp, socket.socket(socket.AF_UNIX) as unix:
        unix.bind(f"\0{name}")
        unix.listen()
        port = tcp.getsockname()[1]
        # The host reaches it.
        socket.create_connection(("127.0.0.1", port), 2).close()
        seen = await bench.python(_REACH, str(port), name)
    equal("host loopback, metadata, TCP, UDP, DNS, abstract socket", seen.text().split(), ["shut"] * 6)


@check(84, "Two processes of one sandbox can talk over 127.0.0.1.")
async def loopback_inside_works(bench: Bench) -> None:
    equal("stdout", (await bench.python(_LOOPBACK)).stdout, b"on\n")


@check(85, "Variables of the host are in no process of a sandbox, process 1 included.")
async def host_secrets_are_in_no_environment(bench: Bench) -> None:
    secret = secrets.token_hex(16)
    os.environ["TURNWISE_CHECK_SECRET"] = secret
    try:
        async with bench.open() as sandbox:
            look = "env; cat /proc/[0-9]*/environ 2>/dev/null | tr '\\0' '\\n'"
            found = [await sandbox.exec(look), await sandbox.shell(look)]
    finally:
        del os.environ["TURNWISE_CHECK_SECRET"]
    for result in found:
        holds("the environment was seen", "PATH=" in result.text())
        holds("the secret was not", secret not in result.text())


@check(86, "Only processes of the sandbox are there, and none of the host's can be signalled.")
async def host_processes_are_invisible(bench: Bench) -> None:
    mark = marker()
    async with bench.open() as other:
        victim = await sleeper(other, mark)
        if bench.gives("hidden_processes"):
            look = "for f in /proc/[0-9]*/cmdline; do tr '\\0' ' ' <$f; echo; done 2>/dev/null"
            inside = await bench.sandbox.exec(look)
            holds("another sandbox's process is not seen", mark not in inside.text())
            count = int((await bench.sandbox.exec("set -- /proc/[0-9]*; echo $#")).text())
            holds(f"few processes are seen ({count})", count < 8)
        await bench.sandbox.exec(f"kill -9 {victim} {os.getpid()}")
        state = host_status(victim, "State")
        holds(f"it lives on ({state})", state[0] in "SRD")


@check(87, "Accounts, homes, keys, the engine's socket and files of other sandboxes are out of reach.")
async def host_files_are_unreadable(bench: Bench) -> None:
    for path in ("/etc/shadow", "/run/docker.sock", "/var/run/docker.sock", "/sys/fs/cgroup/cgroup.procs"):
        holds(f"{path} cannot be read", (await bench.sandbox.exec(["cat", path])).exit_code != 0)
    for path in _homes():
        holds(f"{path} shows nothing", (await bench.sandbox.exec(["ls", "-A", path])).stdout == b"")
    with host_file() as (path, secret):
        found = await bench.sandbox.exec(["cat", str(path)])
        holds("a file of the host is not there", secret not in found.stdout)
    async with bench.open() as other:
        await other.write_file("private", b"x", mode=0o666)
        with raises(FileNotFoundError, PermissionError, what="another sandbox's file"):
            await bench.sandbox.read_file(f"{other.workdir}/private")


@check(88, "No capabilities, no way to new ones, a system call filter, and not root on the host.")
async def no_privileges(bench: Bench) -> None:
    text = (await bench.sandbox.exec("cat /proc/self/status")).text()
    seen = {key: value.strip() for key, _, value in (line.partition(":") for line in text.splitlines())}
    for name in ("CapEff", "CapPrm", "CapInh", "CapAmb"):
        equal(name, int(seen[name], 16), 0)
    equal("NoNewPrivs and Seccomp", (seen["NoNewPrivs"], seen["Seccomp"]), ("1", "2"))
    uids = host_status(await sleeper(bench.sandbox, marker()), "Uid").split()
    holds(f"none of its host user ids is 0 ({uids})", "0" not in uids)


@check(89, "Neither the system's setuid programs nor own ones change who runs.")
async def setuid_gives_nothing(bench: Bench) -> None:
    script = "cp /usr/bin/id own && chmod 6755 own && ./own -u; id -u; su -c 'id -u' </dev/null 2>/dev/null"
    own, real, *others = (await bench.sandbox.exec(script)).text().split()
    equal("user of an own setuid program", own, real)
    equal("output of su", others, [])


@check(
    90,
    "Mounts, namespaces, devices, chroot, BPF, keyrings and tracing are refused.",
    gives=("kernel_doors", "system_calls"),
)
async def kernel_doors_are_shut(bench: Bench) -> None:
    for command in ("mount -t tmpfs none /tmp", "unshare -U true", "unshare -m true", "chroot / true",
                    "mknod n b 8 0", "umount /proc"):  # fmt: skip
        holds(f"`{command}` fails", (await bench.sandbox.exec(command)).exit_code not in (0, 127))
    equal("bpf, keyctl, ptrace", (await bench.python(_SYSTEM_CALLS)).text().split(), ["refused"] * 3)


@check(91, "A command has its three streams and nothing else open, and none of them is a host file.")
async def no_host_descriptor_is_inherited(bench: Bench) -> None:
    look = "for f in /proc/self/fd/*; do [ -e $f ] && echo ${f##*/} $(readlink $f); done"
    with host_file() as (path, _), path.open() as held:
        os.set_inheritable(held.fileno(), True)
        async with bench.open() as sandbox:
            lines = [line.split(maxsplit=1) for line in (await sandbox.exec(look)).text().splitlines()]
            shell = (await sandbox.shell("ls /proc/self/fd")).text().split()
    equal("descriptors of a command", [line[0] for line in lines], ["0", "1", "2"])
    holds("streams are pipes", all(line[1].startswith(("pipe:", "/dev/null")) for line in lines))
    equal("descriptors in the shell", shell, ["0", "1", "2", "3"])


@check(92, "Commands have no controlling terminal and a session of their own: TIOCSTI has no target.")
async def nothing_can_be_typed_into_a_terminal(bench: Bench) -> None:
    equal("typing", (await bench.python(_TERMINAL)).stdout, b"refused\n")
    equal("typing from the shell", (await bench.sandbox.shell("echo x >/dev/tty")).exit_code, 1)


_SETTINGS = ("/usr/local/etc", "/usr/etc")
HOST_MODULES = "tools environments turnwise environments.shipped.code_debug environments.rewards.verdict"
_IMPORTS = f"""
import importlib
for name in "{HOST_MODULES}".split():
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


@check(121, "This package, installed environments and the settings of programs below /usr are out of reach.")
async def nothing_that_a_person_installed_can_be_read(bench: Bench) -> None:
    imported = (await bench.python(_IMPORTS)).text().split()
    equal("what can be imported of it", [path for path in imported if path != "None"], [])
    with ExitStack() as there:
        files = [Path(__file__), *_settings()]
        for folder in _SETTINGS:
            if os.access(folder, os.W_OK):
                files.append(Path(folder, f"turnwise-check-{secrets.token_hex(8)}"))
                files[-1].write_text(secrets.token_hex(16))
                there.callback(files[-1].unlink)
                files[-1].chmod(0o644)
        for path in files:
            if path.is_file() and os.access(path, os.R_OK):
                found = await bench.sandbox.exec(["cat", str(path)])
                holds(f"the host's {path} is not there", found.stdout != path.read_bytes())


@check(122, "Only UNIX, IPv4, IPv6 and NETLINK_ROUTE sockets can be made.", gives=("system_calls",))
async def only_usual_sockets_are_there(bench: Bench) -> None:
    usual = ["2", "10", "16"]
    if bench.gives("unix_sockets"):
        usual.insert(0, "1")
    equal("families", (await bench.python(_SOCKETS)).text().split(), usual)


@check(123, "io_uring and calls of other processor modes (32 bit, x32) are refused.", gives=("system_calls",))
async def no_other_numbers_of_calls_pass_the_filter(bench: Bench) -> None:
    seen = (await bench.python(_OTHER_NUMBERS)).text().split()
    equal("calls", seen, ["refused"] * len(seen))
    holds("some were tried", bool(seen))


@check(124, "Programs of the agent are killed before the host's, and cannot change that.")
async def a_shortage_of_memory_ends_agents_first(bench: Bench) -> None:
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


def _homes() -> list[str]:
    return sorted({str(Path.home()), str(Path("~root").expanduser()), "/home", str(Path.cwd())})


def _settings() -> list[Path]:
    return [path for folder in _SETTINGS for path in Path(folder).glob("*")]


def _score(pid: int) -> int:
    return int(Path(f"/proc/{pid}/oom_score_adj").read_text())
