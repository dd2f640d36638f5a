"""Programs and modules that run inside sandboxes."""

import io
import zipfile
from functools import cache
from pathlib import Path

from tools.sandbox.inside.warm import IMPORTS

_INSIDE = Path(__file__).parent.parent / "inside"

FORK_SERVER = f"""
{IMPORTS}
import os, sys
modules = set(sys.modules)
code, control = map(int, sys.argv[1:])
sys.path.insert(0, f'/proc/self/fd/{{code}}')
from tools.sandbox.inside.fork_loop import enter
from tools.sandbox.inside.warm import become_main
del sys.path[0]
os.close(code)
# What a child must not have is closed up to some number, and the host's may be beyond it.
low = os.dup(control)
os.close(control)
exec(*become_main(enter(low), modules))
"""
"""Arguments: descriptors of the archive and the request socket."""

CONTAINER = """
import ctypes, os, sys
try: os.kill(-1, 9)
except OSError: pass
control, reply = os.dup(0), os.dup(1)
nowhere = os.open('/dev/null', os.O_RDWR)
os.dup2(nowhere, 0)
os.dup2(nowhere, 1)
os.close(nowhere)
def read(count):
    data = b''
    while len(data) < count:
        more = os.read(control, count - len(data))
        if not more: os._exit(0)
        data += more
    return data
# By way of the C library: a Python that was built for an old one does not have it.
code = ctypes.CDLL(None).memfd_create(b'turnwise', 1)
if code < 0: sys.exit('no file in memory can be made')
with open(code, 'wb', closefd=False) as file:
    file.write(read(int.from_bytes(read(4), 'big')))
sys.path.insert(0, f'/proc/self/fd/{code}')
from tools.sandbox.inside.supervisor import serve_in_container
del sys.path[0]
os.close(code)
serve_in_container(control, reply)
"""
"""Reads the archive and requests from stdin; first kills an earlier supervisor."""

HELD_FILES = (
    (_INSIDE / "held_files.py").read_text()
    + """
import marshal, sys
size = int.from_bytes(sys.stdin.buffer.read(8), 'big')
files, folder, workdir, done = marshal.loads(sys.stdin.buffer.read(size))
keep(files, folder, workdir)
copy_as_owner(files, workdir)
os.write(1, done)
"""
)
"""Reads files, folders and a final message from stdin, as root."""

WAKE = """
import os, sys
for pid in filter(str.isdigit, os.listdir('/proc')):
    try:
        with open(f'/proc/{pid}/stat') as file: stopped = file.read().rpartition(')')[2].startswith(' T 0 ')
    except OSError: continue
    if stopped: os.kill(int(pid), 18), sys.stderr.write('stopped')
"""
"""Resumes stopped processes of the engine; reports it on stderr."""

CLEAR = """
import os, signal, time
def theirs():
    found = []
    for name in filter(str.isdigit, os.listdir('/proc')):
        try:
            with open(f'/proc/{name}/status') as file: status = file.read()
        except OSError: continue
        if 'State:\\tZ' in status or name in ('1', str(os.getpid())): continue
        if status.partition('Uid:')[2].split()[0] == '0' and not whole: continue
        found.append(int(name))
    return found
def send(pid, number):
    try: os.kill(pid, number)
    except ProcessLookupError: pass
deadline = time.monotonic() + 8
while (left := theirs()) and time.monotonic() < deadline:
    # Stopped, none of them replaces another.
    stopped = set()
    while new := set(left) - stopped:
        for pid in new: send(pid, signal.SIGSTOP)
        stopped |= new
        left = theirs()
    for pid in stopped: send(pid, signal.SIGKILL)
    time.sleep(0.002)
"""
"""Kills processes not of root, or with `whole` all but the first, as root."""


@cache
def archive() -> bytes:
    """Return a zip file of the modules of `inside`."""
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as made:
        for package in ("tools", "tools/sandbox"):
            made.writestr(f"{package}/__init__.py", "")
        for path in sorted(_INSIDE.glob("*.py")):
            made.writestr(f"tools/sandbox/inside/{path.name}", path.read_bytes())
    return data.getvalue()
