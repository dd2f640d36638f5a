"""A worker process of `arm_pool`: it learns one arm after another until nobody asks any more."""

import asyncio
import os
import pickle
import signal
import sys
import traceback
from typing import BinaryIO

from environments.lab.learning.arm_pool import LENGTH_BYTES, ArmJob
from environments.lab.learning.run_arm import LearningSetup, run_arm
from tools.errors import RunError, TurnwiseError


def main() -> None:
    """Answer what comes on stdin on what stdout was: user code that prints does so on stderr."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # nobody is there any more to be answered
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    asks = sys.stdin.buffer
    prepare = pickle.load(asks)  # of the process that started this one
    if prepare is not None:
        prepare()
    setup = pickle.loads(pickle.load(asks))
    signal.signal(signal.SIGINT, signal.default_int_handler)  # asyncio makes it a cancellation
    try:
        while True:
            _send(answers, _answer(setup, pickle.load(asks), answers))
    except (EOFError, KeyboardInterrupt):
        return


def _answer(setup: LearningSetup, job: ArmJob, answers: BinaryIO) -> object:
    try:
        learning = run_arm(setup, job.arm, job.seed, job.folder, lambda step: _send(answers, step))
        return asyncio.run(learning)
    except TurnwiseError as error:
        return error.with_traceback(None)
    except Exception:  # noqa: BLE001  # said by the process that asked, which ends with it
        return RunError(f"a worker process broke:\n{traceback.format_exc()}")


def _send(answers: BinaryIO, answer: object) -> None:
    content = pickle.dumps(answer)
    answers.write(len(content).to_bytes(LENGTH_BYTES) + content)
    answers.flush()
