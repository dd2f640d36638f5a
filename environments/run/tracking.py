"""What a run's charts show: each group's numbers, those of the last groups by turn, samples of rollouts."""

from collections import defaultdict
from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, contextmanager

import yaml

from environments.base_env import AgentEnv
from environments.record.summary import CHARTED_TURNS, flat
from environments.record.totals import Summary
from environments.run.run_settings import settings_text
from environments.run.tracking_backends import Backend, trackio_backend, wandb_backend
from environments.trajectory import CreditedGroup, Trajectory

MAX_NAMES = 400
"""A chart each; environments name their metrics as they like."""
WINDOW = 16
"""Groups whose numbers are taken together: one group says little of late turns, and a mean over the whole run
hides that a policy learns."""
MAX_SAMPLES = 16
MAX_VALUES = 10_000
TEXT_CHARS = 1000

Track = Callable[[CreditedGroup], None]


@contextmanager
def tracked(env: AgentEnv) -> Generator[Track]:
    """A run that `Track` adds groups to, at each of the services that settings ask for.

    Raises:
        ConfigError: a service's package is not installed, or cannot start.
    """
    with tracking_backends(env) as backends:
        tracker = Tracker(backends)
        try:
            yield tracker.add if backends else _untracked
        finally:
            tracker.end()


@contextmanager
def tracking_backends(env: AgentEnv) -> Generator[list[Backend]]:
    """The services that settings ask for, until their ends.

    Raises:
        ConfigError: a service's package is not installed, or cannot start.
    """
    config, backends = env.config, list[Backend]()
    with ExitStack() as closing:
        for wanted, make in ((config.use_wandb, wandb_backend), (config.use_trackio, trackio_backend)):
            if wanted:
                # Without what may be a secret.
                settings = yaml.safe_load(settings_text(env, None))
                backends.append(make(config.wandb_name or env.name, settings))
                closing.callback(backends[-1].finish)
        yield backends


class Tracker:
    """Makes the steps of the charts: one per group, and every `WINDOW` groups those of the window with it."""

    def __init__(self, backends: list[Backend]) -> None:
        self._backends = backends
        self._known: set[str] = set()
        self._run = Summary()
        self._begin_window()

    def add(self, credited: CreditedGroup) -> None:
        """Take one finished group in."""
        self._run.add(credited)
        self._window.add(credited)
        self._shown.add(credited)
        numbers = group_numbers(credited)
        if self._window.done == WINDOW:
            self._log(numbers | self._windows())
        else:
            self._log(numbers, whole=False)

    def end(self) -> None:
        """Show what the last groups came to, too few for a window."""
        if self._window.done:
            self._log(self._windows())

    def _windows(self) -> dict[str, float]:
        return flat(self._window.values(), "window") | flat(self._run.values(), "run")

    def _log(self, numbers: Mapping[str, float], *, whole: bool = True) -> None:
        shown = few_names(numbers, self._known)
        for backend in self._backends:
            backend.log(shown, self._shown.histograms if whole else {}, self._shown.samples if whole else ())
        if whole:
            self._begin_window()

    def _begin_window(self) -> None:
        self._window, self._shown = Summary(), ShownGroups()


class ShownGroups:
    """What charts show of groups beside their numbers."""

    def __init__(self) -> None:
        """Of none so far."""
        self.histograms: defaultdict[str, list[float]] = defaultdict(list)
        """Scores, and by turn rewards and, where there is credit, advantages."""
        self.samples: list[dict[str, str | float | None]] = []

    def add(self, credited: CreditedGroup) -> None:
        """Take one more group in."""
        group = credited.group
        has_credit = credited.status != "failed" and not (group.is_evaluation or group.stale)
        for trajectory, row in zip(credited.group.trajectories, credited.advantages, strict=True):
            if trajectory.score is not None:
                self._value("score", trajectory.score)
            for index, reward in enumerate((trajectory.act_rewards or ())[:CHARTED_TURNS]):
                if reward is not None:
                    self._value(f"turn/{index + 1:02}/reward", reward)
            advantages = [
                (advantage, turn.trained)
                for advantage, turn in zip(row, trajectory.turns, strict=True)
                if turn.kind == "act"
            ]
            for index, (advantage, trained) in enumerate(advantages[:CHARTED_TURNS]):
                if trained and has_credit:
                    self._value(f"turn/{index + 1:02}/advantage", advantage)
        if credited.group.trajectories and len(self.samples) < MAX_SAMPLES:
            self.samples.append(sample(credited.group.trajectories[0], credited))

    def _value(self, name: str, value: float) -> None:
        values = self.histograms[f"histogram/{name}"]
        if len(values) < MAX_VALUES:
            values.append(value)


def group_numbers(credited: CreditedGroup) -> dict[str, float]:
    """What one group came to, without its numbers by turn; a mean over nothing is left out, never 0."""
    summary = Summary()
    summary.add(credited)
    numbers = flat(summary.values(), "group")
    return {name: value for name, value in numbers.items() if not name.startswith("group/turn/")}


def sample(trajectory: Trajectory, credited: CreditedGroup) -> dict[str, str | float | None]:
    """A rollout as a row of a table for people."""
    rewards = trajectory.act_rewards
    shown = ["-" if reward is None else f"{reward:.3g}" for reward in (rewards or ())[:CHARTED_TURNS]]
    last = trajectory.messages[-1].content if trajectory.turns else ""
    return {
        "item": _text(trajectory.item_id),
        "epoch": float(credited.group.epoch),
        "sibling": float(trajectory.sibling),
        "score": trajectory.score,
        "turns": float(len(trajectory.acts)),
        "rewards by turn": "  ".join(shown) + ("  …" if rewards and len(rewards) > CHARTED_TURNS else ""),
        "stop reason": trajectory.stop_reason.value,
        "last message": _text(last),
    }


def few_names(numbers: Mapping[str, float], known: set[str]) -> dict[str, float]:
    """The numbers under the first `MAX_NAMES` names that ever came; `known` grows by those that are new."""
    for name in numbers:
        if len(known) < MAX_NAMES:
            known.add(name)
    return {name: value for name, value in numbers.items() if name in known}


def _text(text: str) -> str:
    """Text that any table can hold."""
    cut = text if len(text) <= TEXT_CHARS else f"{text[: TEXT_CHARS - 1]}…"
    return cut.encode("utf-8", "replace").decode()


def _untracked(_: CreditedGroup) -> None:
    """Nobody asked."""
