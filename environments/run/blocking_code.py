"""Where in an environment's code a thread is: neither ours, nor the standard library's, nor a package's."""

import sys
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import FrameType

import environments
import tools
from environments.run.interpreter_yields import hand_over

_OURS = tuple(f"{folder}/" for package in (environments, tools) for folder in package.__path__)
_LIBRARIES = tuple(
    {f"{sysconfig.get_path(name)}/" for name in ("stdlib", "platstdlib", "purelib", "platlib")} | {"<frozen "}
)


class CodePlaces:
    """Tells an environment's code from what it uses."""

    def __init__(self, env_cls: type) -> None:
        """Know the code of one environment, wherever it is installed."""
        file = getattr(sys.modules.get(env_cls.__module__), "__file__", None) or ""
        # A shipped environment lies among our own files, an installed one among packages.
        self._home = f"{Path(file).parent}/" if file.startswith((*_OURS, *_LIBRARIES)) else None

    def of_thread(self, ident: int) -> str | None:
        """`file.py:12 in compute_reward`, where a thread is now; `None`: not in the environment's code."""
        innermost = sys._current_frames().get(ident)  # pyright: ignore[reportPrivateUsage]  # there is no other way
        return self.of_frame(innermost)

    def of_frame(self, innermost: FrameType | None) -> str | None:
        """The hook or tool that a frame belongs to, and the line below it that it is at."""
        called = list(self._calls(_outwards(innermost)))
        if not called:
            return None
        hook, deepest = called[-1], called[0]
        within = "" if deepest is hook else f", at {_place(deepest)}"
        return f"{_place(hook)}{within}"

    def _calls(self, frames: Iterable[FrameType]) -> Iterator[FrameType]:
        """Frames of the environment inside the innermost frame of ours, innermost first."""
        for frame in frames:
            file = frame.f_code.co_filename
            if self._home is not None and file.startswith(self._home):
                yield frame
            elif frame.f_code is hand_over.__code__:
                continue  # it interrupted what is looked for
            elif file.startswith(_OURS):
                return
            elif not file.startswith(_LIBRARIES):
                yield frame


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _place(frame: FrameType) -> str:
    code = frame.f_code
    return f"{Path(code.co_filename).name}:{frame.f_lineno} in {code.co_name}"
