"""Checks 83 to 92: nothing of the host can be seen, reached or gained."""

import os
import secrets
import socket
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from tools.sandbox.conformance.bench import Bench, host_status, marker, sleeper
from tools.sandbox.conformance.checks import check, equal, holds, raises

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


@check(83, gives=("network",))
async def there_is_no_network(bench: Bench) -> None:
    """TCP, UDP, DNS, the host's loopback, its abstract sockets and cloud metadata are out of reach."""
    name = f"turnwise-{secrets.token_hex(8)}"
    with socket.create_server(("127.0.0.1", 0)) as tcp, socket.socket(socket.AF_UNIX) as unix:
        unix.bind(f"\0{name}")
        unix.listen()
        port = tcp.getsockname()[1]
        # They are really there: the host reaches them.
        socket.create_connection(("127.0.0.1", port), 2).close()
        seen = await bench.python(_REACH, str(port), name)
    equal("host loopback, metadata, TCP, UDP, DNS, abstract socket", seen.text().split(), ["shut"] * 6)


@check(84)
async def loopback_inside_works(bench: Bench) -> None:
    """Two processes of one sandbox can talk over 127.0.0.1."""
    equal("stdout", (await bench.python(_LOOPBACK)).stdout, b"on\n")


@check(85)
async def host_secrets_are_in_no_environment(bench: Bench) -> None:
    """Variables of the host are in no process of a sandbox, process 1 included."""
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


@check(86)
async def host_processes_are_invisible(bench: Bench) -> None:
    """Only processes of the sandbox are there, and none of the host's can be signalled."""
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


@check(87)
async def host_files_are_unreadable(bench: Bench) -> None:
    """Accounts, homes, keys, the container engine's socket and other sandboxes' files are out of reach."""
    for path in ("/etc/shadow", "/run/docker.sock", "/var/run/docker.sock", "/sys/fs/cgroup/cgroup.procs"):
        holds(f"{path} cannot be read", (await bench.sandbox.exec(["cat", path])).exit_code != 0)
    for path in _homes():
        holds(f"{path} shows nothing", (await bench.sandbox.exec(["ls", "-A", path])).stdout == b"")
    with _secret_file() as (path, secret):
        found = await bench.sandbox.exec(["cat", str(path)])
        holds("a file of the host is not there", secret.encode() not in found.stdout)
    async with bench.open() as other:
        await other.write_file("private", b"x", mode=0o666)
        with raises(FileNotFoundError, PermissionError, what="another sandbox's file"):
            await bench.sandbox.read_file(f"{other.workdir}/private")


@check(88)
async def no_privileges(bench: Bench) -> None:
    """No capabilities, no way to new ones, a system call filter, and not root on the host."""
    text = (await bench.sandbox.exec("cat /proc/self/status")).text()
    seen = {key: value.strip() for key, _, value in (line.partition(":") for line in text.splitlines())}
    for name in ("CapEff", "CapPrm", "CapInh", "CapAmb"):
        equal(name, int(seen[name], 16), 0)
    equal("NoNewPrivs and Seccomp", (seen["NoNewPrivs"], seen["Seccomp"]), ("1", "2"))
    uids = host_status(await sleeper(bench.sandbox, marker()), "Uid").split()
    holds(f"none of its host user ids is 0 ({uids})", "0" not in uids)


@check(89)
async def setuid_gives_nothing(bench: Bench) -> None:
    """Neither the system's setuid programs nor own ones change who runs."""
    script = "cp /usr/bin/id own && chmod 6755 own && ./own -u; id -u; su -c 'id -u' </dev/null 2>/dev/null"
    own, real, *others = (await bench.sandbox.exec(script)).text().split()
    equal("user of an own setuid program", own, real)
    equal("output of su", others, [])


@check(90, gives=("kernel_doors", "system_calls"))
async def kernel_doors_are_shut(bench: Bench) -> None:
    """Mounts, namespaces, devices, chroot, BPF, keyrings and tracing of process 1 are refused."""
    for command in ("mount -t tmpfs none /tmp", "unshare -U true", "unshare -m true", "chroot / true",
                    "mknod n b 8 0", "umount /proc"):  # fmt: skip
        holds(f"`{command}` fails", (await bench.sandbox.exec(command)).exit_code not in (0, 127))
    equal("bpf, keyctl, ptrace", (await bench.python(_SYSTEM_CALLS)).text().split(), ["refused"] * 3)


@check(91)
async def no_host_descriptor_is_inherited(bench: Bench) -> None:
    """A command has its three streams and nothing else open, and none of them is a host file."""
    look = "for f in /proc/self/fd/*; do [ -e $f ] && echo ${f##*/} $(readlink $f); done"
    with _secret_file() as (path, _), path.open() as held:
        os.set_inheritable(held.fileno(), True)
        async with bench.open() as sandbox:
            lines = [line.split(maxsplit=1) for line in (await sandbox.exec(look)).text().splitlines()]
            shell = (await sandbox.shell("ls /proc/self/fd")).text().split()
    equal("descriptors of a command", [line[0] for line in lines], ["0", "1", "2"])
    holds("streams are pipes", all(line[1].startswith(("pipe:", "/dev/null")) for line in lines))
    equal("descriptors in the shell", shell, ["0", "1", "2", "3"])


@check(92)
async def nothing_can_be_typed_into_a_terminal(bench: Bench) -> None:
    """Commands have no controlling terminal and a session of their own: TIOCSTI has no target."""
    equal("typing", (await bench.python(_TERMINAL)).stdout, b"refused\n")
    equal("typing from the shell", (await bench.sandbox.shell("echo x >/dev/tty")).exit_code, 1)


def _homes() -> list[str]:
    return sorted({str(Path.home()), str(Path("~root").expanduser()), "/home", str(Path.cwd())})


@contextmanager
def _secret_file() -> Generator[tuple[Path, str]]:
    """A file on the host that everybody may read."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        path, secret = Path(folder, "secret"), secrets.token_hex(16)
        path.write_text(secret)
        path.chmod(0o666)
        yield path, secret
