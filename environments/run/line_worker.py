"""A worker process of `line_pass`: it answers for stretches of a record until nobody asks any more."""

import os
import pickle
import signal
import sys
import traceback
from pathlib import Path
from typing import Any, BinaryIO

from environments.run.line_pass import LineWork, Stretch, lines_of
from tools.errors import RunError, TurnwiseError


def main() -> None:
    """Answer what comes on stdin on what stdout was: user code that prints does so on stderr."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # nobody is there any more to be answered
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    _answer(sys.stdin.buffer, answers)


def _answer(asks: BinaryIO, answers: BinaryIO) -> None:
    path, work = pickle.load(asks)  # of the process that started this one
    work.prepare()
    with path.open("rb") as file:
        while True:
            try:
                stretch: Stretch = pickle.load(asks)
            except EOFError:
                return
            pickle.dump(_result(work, path, stretch, file.fileno()), answers, protocol=5)
            answers.flush()


def _result(work: LineWork[Any], path: Path, stretch: Stretch, file: int) -> Any:
    try:
        return work(path, stretch.number, lines_of(path, file, stretch))
    except TurnwiseError as error:
        return error.with_traceback(None)
    except Exception:  # noqa: BLE001  # said by the process that asked, which ends with it
        return RunError(f"a worker process broke:\n{traceback.format_exc()}")
