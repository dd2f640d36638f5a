"""The way around this process: the host runs short commands in the persistent shell itself.

Between two commands the shell is offered to the host with everything the next one needs: where to write the
command, its outputs, the shell's input, and where it tells the status. What is not over after a moment the
host gives back, and it goes on here as if it had been started here.
"""

from __future__ import annotations

import _socket
import os

from tools.sandbox.inside import frames, rights

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tools.sandbox.inside.shell import Shell


class Line:
    """Offers a shell for the next request; any other request makes the offer void, and it is made again.

    So nothing of ours happens between an offer and the command that it is used for.
    """

    __slots__ = ("_left", "_offered", "_oom_fd", "_ours", "_shell", "before", "requests")

    def __init__(self, oom_fd: int) -> None:
        self.requests = 0
        """How many came, which the host counts, too."""
        self.before: set[tuple[int, int]] = set()
        """The processes before the command that the host may run next."""
        self._ours: _socket.socket | None = None
        self._oom_fd = oom_fd
        self._offered: tuple[int, int] | None = None
        self._shell: Shell | None = None
        self._left: tuple[int, int, int] | None = None

    def open(self, control: int, greeting: bytes) -> bool:
        """Give the host its end, with a greeting on the channel; `False` when neither can be given."""
        ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
        channel = _socket.socket(fileno=control)
        try:
            rights.send(channel, greeting, theirs.fileno())
        except OSError:
            return False
        finally:
            channel.detach()
            theirs.close()
        ours.setblocking(False)
        self._ours = ours
        return True

    def offer(self, shell: Shell, outputs: tuple[int, int]) -> None:
        """Offer the shell with the outputs that were prepared in it.

        Raises:
            OSError: the agent has changed the shell's own files.
        """
        if self._ours is None:
            return
        # Each time, since the agent may have put something in its place.
        fds = [shell.new_command()]
        # What the host has of the others and did not use is as good as new.
        if outputs is not self._offered:
            fds += outputs
            if shell is not self._shell:
                fds += [shell.input_fd, shell.status_fd, *([self._oom_fd] if self._oom_fd >= 0 else [])]
        message = frames.pack(frames.LINE, b"%d" % self.requests, shell.nonce, shell.trigger())
        try:
            rights.send(self._ours, message, *fds)
            self._offered, self._shell = outputs, shell
        except OSError:
            self._ours = None  # a host that does not listen, or too many descriptors on their way
        finally:
            os.close(fds[0])

    def keep(self, outputs: tuple[int, int] | None, code: int) -> None:
        """Keep what a dead shell left: the host may have begun a command in it."""
        self.drop()
        self._left = None if outputs is None else (*outputs, code)

    def left(self) -> tuple[int, int, int] | None:
        """The outputs and the exit code of a shell that died; the caller owns them from now on."""
        left, self._left = self._left, None
        return left

    def drop(self) -> None:
        """Close what a dead shell left: nothing that the host has begun still needs it."""
        for fd in (self.left() or ())[:2]:
            os.close(fd)
