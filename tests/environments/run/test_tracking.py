"""Charts of a run: off unless asked for, and then they get every group and end nothing."""

import os
import subprocess
import sys
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest

from environments.config import AgentEnvConfig
from environments.credit import credited
from environments.run.group_source import MAX_SAMPLES, TEXT_CHARS, note_of
from environments.run.tracking import (
    MOST_WARNINGS,
    TRACKIO,
    WANDB,
    WINDOW,
    Charts,
    Observers,
    Tracker,
    open_charts,
    start_charts,
)
from environments.testing import group_of
from tests.environments.write_file import WriteFile
from tests.equipment.commands import turnwise
from tools.errors import ConfigError


class Kept:
    """A backend that keeps its steps."""

    name = "kept"

    def __init__(self):
        self.steps, self.ended = [], False

    def log(self, numbers, histograms, samples):
        self.steps.append(
            (dict(numbers), {name: list(each) for name, each in histograms.items()}, list(samples))
        )

    def finish(self):
        self.ended = True


def done(rewards):
    return credited(group_of(rewards), "turn_return", policy="p")


def charted(groups):
    charts = Kept()
    observers = Observers()
    tracker = Tracker([charts], observers)
    for group in groups:
        tracker.add(note_of(group, is_charted=True))
    tracker.end()
    observers.end()
    return charts.steps


def test_a_tracked_run_leaves_its_groups_windows_and_samples_with_wandb(tmp_path):
    options = ("--env.max_items", "1", "--env.group_size", "2", "--out", tmp_path / "r.jsonl")
    wandb = {"WANDB_MODE": "offline", "WANDB_DIR": tmp_path, "WANDB_SILENT": "true"}
    done = turnwise("process", "terminal_tasks", "--env.use_wandb", "true", *options, **wandb)
    assert done.returncode == 0, done.stderr
    (recorded,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    held = recorded.read_bytes()
    assert all(name in held for name in (b"group/score/mean", b"window/turn/01/rollouts", b"histogram/score"))
    assert list(tmp_path.glob("wandb/offline-run-*/files/media/table/samples*"))


def test_a_service_keeps_no_secret_of_the_command_line(monkeypatch):
    kept = []
    fake = SimpleNamespace(init=lambda **_: kept.extend(sys.argv))
    monkeypatch.setitem(sys.modules, "wandb", fake)
    token = "--env.rollout_server_token=s3cret"
    given = ["turnwise", "--openai.api_key", "s3cret", token, "--x_url", "http://me:s3cret@h/v1"]
    monkeypatch.setattr(sys, "argv", given)
    start_charts(WANDB, "n", {})
    assert (kept[0], kept[-1], sys.argv) == ("turnwise", "http://***@h/v1", given)
    assert "s3cret" not in " ".join(kept)


@pytest.mark.soak
def test_without_a_key_tracking_is_refused_in_one_line(tmp_path):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("WANDB")}
    command = [sys.executable, "-m", "turnwise", "process", "terminal_tasks", "--env.use_wandb", "true"]
    done = subprocess.run(
        [*command, "--out", str(tmp_path / "r.jsonl")],
        env={**environment, "WANDB_DIR": str(tmp_path), "HOME": str(tmp_path), "WANDB_MODE": "online"},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 2
    assert done.stderr.strip().splitlines()[-1].startswith("turnwise: error: --env.use_wandb:")


def test_a_service_whose_package_is_missing_is_named_with_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "trackio", None)
    env = WriteFile(AgentEnvConfig(use_trackio=True))
    with pytest.raises(ConfigError, match=r"trackio.*turnwise\[trackio\]"), open_charts(env, Observers()):
        pass


def test_numbers_by_turn_come_with_each_window_which_forgets_the_groups_before_it_and_at_the_end():
    groups = [done([[0.0], [0.0]])] * WINDOW + [done([[1.0], [0.0]])] * (WINDOW + 2)
    steps = [numbers for numbers, _, _ in charted(groups)]
    windows = [step for step in steps if "window/turn/01/reward" in step]
    assert [steps.index(step) for step in windows] == [WINDOW - 1, 2 * WINDOW - 1, 2 * WINDOW + 2]
    assert [step["window/groups/done"] for step in windows] == [WINDOW, WINDOW, 2]
    assert (windows[1]["window/score/mean"], windows[1]["run/score/mean"]) == (0.5, 0.25)
    assert windows[2]["run/groups/done"] == 2 * WINDOW + 2


def test_samples_are_few_and_their_texts_cut():
    group = done([[1.0, None], [0.0, 0.5]])
    first, *others = group.group.trajectories
    long = replace(first, item_id="\ud800" + "x" * 10 * TEXT_CHARS)
    group = replace(group, group=replace(group.group, trajectories=(long, *others)))
    _, _, samples = charted([group] * (WINDOW - 1))[-1]
    assert len(samples) <= MAX_SAMPLES
    assert (samples[0]["item"][0], len(samples[0]["item"])) == ("?", TEXT_CHARS)
    assert samples[0]["rewards by turn"] == "1  -"


class Broken:
    def log(self, *_):
        raise OSError("http://user:secret@example.org is away")

    def finish(self):
        raise OSError("away")


def test_a_service_that_breaks_is_warned_of_a_few_times_and_ends_nothing(caplog):
    backend, observers = Charts(TRACKIO, Broken(), None), Observers()
    for _ in range(10):
        observers.put(backend.name, partial(backend.log, {}, {}, ()))
    observers.end()
    assert len(caplog.records) == MOST_WARNINGS
    assert "secret" not in caplog.text


def test_settings_that_may_be_secrets_are_sent_to_nobody(monkeypatch):
    sent = []

    def made(service, name, settings):
        sent.append((name, settings))
        return Kept()

    monkeypatch.setattr("environments.run.tracking.start_charts", made)

    class Config(AgentEnvConfig):
        shop_api_key: str = "hidden-1"
        shop_url: str = "https://me:hidden-2@example.org/x?key=hidden-3"

    class Env(WriteFile):
        env_config_cls = Config

    with open_charts(Env(Config(use_wandb=True, rollout_server_token="hidden-4")), Observers()):
        pass
    ((_, settings),) = sent
    assert "hidden" not in str(settings)
    assert settings["env"]["group_size"] == 4
