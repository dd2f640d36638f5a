"""The real trajectory API as a process, and a trainer that talks to it."""

import http.client
import json
import random
import subprocess
import tempfile
import threading
import time
import urllib.error
import urllib.request

import pytest

from environments.serve.outbox import Outbox
from tests.environments.serve.loopback import RUN_API, free_port


class RunApi:
    """`run-api` on a loopback port that stays the same when it is started again."""

    def __init__(self):
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.process = None

    def command(self):
        """What starts it: the installed script, on loopback only."""
        return [RUN_API, "--host", "127.0.0.1", "--port", str(self.port)]

    def start(self):
        with tempfile.TemporaryFile() as said:
            self.process = subprocess.Popen(self.command(), stdout=subprocess.DEVNULL, stderr=said)
            deadline = time.monotonic() + 60
            while True:
                try:
                    return self.get("/info")
                except OSError:
                    if self.process.poll() is not None or time.monotonic() > deadline:
                        said.seek(0)
                        raise AssertionError(f"the API did not start: {said.read().decode()}") from None
                    time.sleep(0.02)

    def kill(self):
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def call(self, method, path, body=None):
        """Status and decoded answer."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(self.url + path, method=method, data=data, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                text = answer.read()
                status = answer.status
        except urllib.error.HTTPError as error:
            text = error.read()
            status = error.code
        try:
            return status, json.loads(text)
        except json.JSONDecodeError:
            return status, text.decode()

    def get(self, path, body=None):
        return self.call("GET", path, body)[1]

    def post(self, path, body):
        return self.call("POST", path, body)[1]

    def start_trainer(self, **settings):
        """What a trainer does before environments may register."""
        self.register_trainer(**settings)
        return self.get("/batch")

    def register_trainer(self, batch_size=4, max_token_len=1000, num_steps=-1, starting_step=0):
        asked = {"batch_size": batch_size, "max_token_len": max_token_len, "num_steps": num_steps}
        rest = {"wandb_group": "", "wandb_project": "", "checkpoint_dir": "", "save_checkpoint_interval": 1}
        return self.post("/register", {**asked, **rest, "starting_step": starting_step})

    def register_env(self, name="env", group_size=4, **fields):
        asked = {"max_token_length": 1000, "desired_name": name, "weight": 1.0, "group_size": group_size}
        return self.post("/register-env", asked | fields)

    def take_batch(self):
        return self.get("/batch")["batch"]


class Trainer:
    """Takes batches in a thread, and registers again with an API that has forgotten it.

    It takes its time for every batch, so that groups wait for it at the API.
    """

    def __init__(self, api, *, batch_size, longest_step_s=0.25):
        self.posts = []
        """Every group as it came, in order."""
        self._api, self._batch_size = api, batch_size
        self._longest_step_s, self._drawn = longest_step_s, random.Random(0)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join()

    def _run(self):
        while not self._stop.wait(self._drawn.uniform(0, self._longest_step_s)):
            try:
                answer = self._api.get("/batch")
                if "status" in answer:
                    self._api.start_trainer(batch_size=self._batch_size, max_token_len=40_000)
                self.posts += answer["batch"] or []
            except (OSError, http.client.HTTPException):
                pass  # the API is down; what it was just sending did not arrive


@pytest.fixture
def start_trainer_on():
    """`start_trainer_on(api, batch_size=…)`: a trainer in a thread, for a `with` statement."""
    return Trainer


@pytest.fixture(scope="session")
def _running_api():
    """One process for all tests of a worker: starting it takes seconds, emptying it a request."""
    server = RunApi()
    yield server
    server.kill()


@pytest.fixture
def api(_running_api):
    """An API that knows nobody; a test may kill it and start it again."""
    if _running_api.process is None or _running_api.process.poll() is not None:
        _running_api.start()
    else:
        _running_api.get("/reset_data")
    return _running_api


@pytest.fixture
def fresh_api():
    """An API process that nobody has ever talked to."""
    server = RunApi()
    server.start()
    yield server
    server.kill()


@pytest.fixture
def trained(api):
    """An API whose trainer wants batches of 4 rows."""
    api.start_trainer(batch_size=4)
    return api


@pytest.fixture
def outbox(tmp_path):
    """An empty outbox."""
    with Outbox(tmp_path / "o.sqlite") as made:
        yield made
