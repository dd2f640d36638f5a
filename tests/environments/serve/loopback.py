"""The processes that the tests of `serve` start on loopback: their commands and ports."""

import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

SERVED = Path(__file__).with_name("served_env.py")
TURNWISE = str(Path(sys.executable).with_name("turnwise"))
RUN_API = str(Path(sys.executable).with_name("run-api"))


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def serve(env, api_url, folder, *options, group_size=4, view="token_advantages"):
    """`turnwise serve` for a class of `served_env`, its outbox and its record in a folder."""
    command = [TURNWISE, "serve", f"{SERVED}:{env}", "--env.rollout_server_url", api_url]
    command += [] if view is None else ["--env.credit_view", view]
    command += ["--outbox", str(folder / "outbox.sqlite"), "--out", str(folder / "record.jsonl")]
    return [*command, "--env.group_size", str(group_size), *options]


def mock_model(env, port, role="policy"):
    return [TURNWISE, "mock-model", f"{SERVED}:{env}", "--port", str(port), "--role", role]


def playing(port):
    """Options of `serve` for the model server on a port."""
    return ["--openai.base_url", f"http://127.0.0.1:{port}/v1", "--openai.model_name", "scripted"]


def wait_for_port(process, port):
    """Until a process that was just started listens."""
    while True:
        assert process.poll() is None, f"{process.args} ended at its start"
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.02)
        else:
            return


def wait_until(condition, seconds=90):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@contextmanager
def running(command, *, torch=False, environ=None, **streams):
    """A process that has ended when the block has."""
    process = subprocess.Popen(command, env=environ or (None if torch else without_torch()), **streams)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def without_torch():
    """Variables with which a program does not find torch, whose import alone takes seconds."""
    paths = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    kept = [path for path in paths if not Path(path, "torch").is_dir()]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(kept)}


def ended(process, seconds=60):
    """The exit code after a SIGTERM."""
    process.send_signal(signal.SIGTERM)
    return process.wait(seconds)


def take(api, batches):
    """The groups of so many batches, as often as the trainer asks for them."""
    taken = []
    while len(taken) < batches:
        batch = api.take_batch()
        if batch is None:
            time.sleep(0.05)
        else:
            taken.append(batch)
    return [group for batch in taken for group in batch]
