"""What a run came to: small statistics that grow with the groups' variety, not their number."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from rich.console import Console
from rich.text import Text

from environments.record.condensations import Condensations
from environments.record.cost import Cost
from environments.record.forks import Forks
from environments.record.measured import Measured
from environments.record.profile_totals import ProfileTotals
from environments.record.spread import Spread
from environments.record.tally import TEXT_CHARS, counts, lines, tally
from environments.record.turn_totals import TurnTotals
from environments.record.weight_totals import WeightTotals
from environments.trajectory import CreditedGroup, Failure, Trajectory, TrajectoryGroup
from tools.sandbox.base import SandboxRecord

SHOWN_TURNS = 12
EVALUATED = "evaluated"
"""The status of a group that was given no credit."""
_CLAUSE = re.compile(
    r"(?:environment '[^']*'(?:, item .*?)?: )?(?:turn \d+: )?"
    r"((?:\w+: )?.*?)(?:;|\((?!\))|[.,:]\s|$)",
    re.DOTALL,
)
"""The first clause, without what each rollout has another of. A point in a number, or a colon in an address
or after the name of a hook, ends none; nor does a function's ()."""


@dataclass(slots=True, kw_only=True)
class Summary:
    """Running totals of one run. Only `add` and `add_rollouts` change it."""

    groups: Counter[str] = field(default_factory=Counter[str])
    """By status: `ok`, `no_credit`, `failed`."""
    reasons: Counter[str] = field(default_factory=Counter[str])
    """Why groups were skipped or failed."""
    failures: Counter[str] = field(default_factory=Counter[str])
    """Why siblings were dropped."""
    failure_classes: Counter[str] = field(default_factory=Counter[str])
    """The same by the class of the error alone."""
    score: Spread = field(default_factory=Spread)
    turns: Spread = field(default_factory=Spread)
    """Acts of each rollout: summaries are counted apart."""
    by_turn: TurnTotals = field(default_factory=TurnTotals)
    measured: Measured = field(default_factory=Measured)
    credited_turns: int = 0
    """Acts, as the next."""
    untrained_turns: int = 0
    """Turns that were left out of training."""
    turns_without_peer: int = 0
    """Credited turns whose advantage is their raw return, since no sibling had a comparable one."""
    stop_reasons: Counter[str] = field(default_factory=Counter[str])
    """Why rollouts ended, with the words of those environments that ended them."""
    tool_calls: int = 0
    tool_errors: Counter[str] = field(default_factory=Counter[str])
    cost: Cost = field(default_factory=Cost)
    forks: Forks = field(default_factory=Forks)
    condensations: Condensations = field(default_factory=Condensations)
    sandboxes: Counter[str] = field(default_factory=Counter[str])
    """Trajectories by how they were isolated, `none` where they had no sandbox."""
    images: set[str] = field(default_factory=set[str])
    """Digests of what sandboxes were made from."""
    weights: WeightTotals = field(default_factory=WeightTotals)
    profiles: ProfileTotals = field(default_factory=ProfileTotals)

    def add(self, credited: CreditedGroup) -> None:
        """Take one finished group in."""
        if credited.group.is_evaluation:
            self.add_rollouts(credited.group, "failed" if credited.status == "failed" else EVALUATED)
            return
        if credited.reason is not None:
            tally(self.reasons, f"{credited.status}: {credited.reason}")
        if credited.status != "failed" and credited.group.stale is None:
            self.credited_turns += sum(map(len, credited.advantages)) - _not_counted(credited.group)
            self.turns_without_peer += credited.turns_without_peer
            self.by_turn.add_credit(credited)
        self.add_rollouts(credited.group, credited.status)

    def add_rollouts(self, group: TrajectoryGroup, status: str) -> None:
        """Take a group in that was given no credit, as in an evaluation."""
        self.groups[status] += 1
        self.untrained_turns += _untrained(group)
        self.cost.add(group)
        self.weights.add(group)
        self.profiles.add(group)
        for failure in group.failures:
            self._add_failure(failure)
        for trajectory in group.trajectories:
            self._add_trajectory(trajectory)

    @property
    def done(self) -> int:
        """Groups that ended, however."""
        return self.groups.total()

    def _add_failure(self, failure: Failure) -> None:
        name, _, message = failure.error.partition(": ")
        name = failure.error_class or name
        tally(self.failure_classes, name)
        where = "" if failure.where is None else f" ({failure.where})"
        found = _CLAUSE.match(" ".join(message.split()))
        clause = found[1].strip() if found else ""
        text = f"{name}: {clause}" if clause else name
        tally(self.failures, f"{text[:TEXT_CHARS]}{where}", otherwise=f"{name}: other texts")

    def _add_trajectory(self, trajectory: Trajectory) -> None:
        self.turns.add(len(trajectory.acts))
        stopped, why = trajectory.stop_reason.value, trajectory.end_reason
        tally(self.stop_reasons, stopped if why is None else f"{stopped}: {why}", otherwise=stopped)
        self.forks.add(trajectory)
        self.condensations.add(trajectory)
        self.measured.add(trajectory)
        self._add_sandbox(trajectory.sandbox)
        self.by_turn.add(trajectory)
        for turn in trajectory.turns:
            self.tool_calls += len(turn.tool_results)
            self.tool_errors.update(result.error for result in turn.tool_results if result.error is not None)
        if trajectory.score is not None:
            self.score.add(trajectory.score)

    def _add_sandbox(self, sandbox: SandboxRecord | None) -> None:
        self.sandboxes["none" if sandbox is None else f"{sandbox.backend} {sandbox.tier}"] += 1
        if sandbox is not None and sandbox.image is not None:
            self.images.add(sandbox.image)


def print_summary(console: Console, summary: Summary, *, path: str | None, wall_s: float) -> None:
    """The summary of a run, then the path of the record on a line of its own."""
    print_rows(console, summary_rows(summary, wall_s=wall_s))
    if path is not None:
        console.print(Text(path, style="bold"), soft_wrap=True)


def print_side_notes(console: Console, summary: Summary) -> None:
    """Why rollouts were dropped and groups skipped; what was condensed, asked and timed: where any was."""
    rows = [
        ("dropped rollouts", lines(summary.failures)),
        ("skipped groups", lines(summary.reasons)),
        *summary.condensations.rows(),
        ("forks", summary.forks.text()),
        ("weights", summary.weights.text()),
        *summary.cost.rows(),
        *summary.profiles.rows(),
    ]
    print_rows(console, [(name, text) for name, text in rows if text])


def print_rows(console: Console, rows: Sequence[tuple[str, str]]) -> None:
    """Names and texts in two columns; a text of several lines stays in its column."""
    width = max((len(name) for name, _ in rows), default=0) + 2
    for name, text in rows:
        for number, line in enumerate(text.split("\n")):
            head = Text(f"{'' if number else name:<{width}}", style="bold")
            console.print(head.append(line, style="not bold"), soft_wrap=True)


def summary_rows(summary: Summary, *, wall_s: float) -> list[tuple[str, str]]:
    """The lines of a summary, name and text; a line with nothing to say is left out."""
    shown = [f"{index}: {mean:.3f}" for index, mean in summary.by_turn.shown(SHOWN_TURNS)]
    cost = summary.cost
    kinds = (("exact", cost.exact_tokens), ("approximate", cost.approximate_tokens))
    tokens = [f"{count:,} {kind}" for kind, count in kinds if count]
    rows = [
        ("groups", f"{summary.done}" + counts(summary.groups, " (", ")")),
        ("score", _range(summary.score)),
        ("turns", _range(summary.turns)),
        ("reward by turn", "  ".join(shown)),
        *summary.measured.rows(),
        ("without a peer", _without_peer(summary)),
        ("not trained", f"{summary.untrained_turns:,} turns" if summary.untrained_turns else ""),
        ("stop reasons", counts(summary.stop_reasons)),
        ("tool calls", f"{summary.tool_calls:,}"),
        ("tool errors", counts(summary.tool_errors) or "none"),
        ("dropped rollouts", lines(summary.failures) or "none"),
        ("skipped groups", lines(summary.reasons) or "none"),
        ("tokens sampled", ", ".join(tokens)),
        *summary.condensations.rows(),
        ("forks", summary.forks.text()),
        *summary.cost.rows(),
        ("weights", summary.weights.text()),
        ("sandboxes", _sandboxes(summary)),
        *summary.profiles.rows(),
        ("wall time", duration(wall_s)),
    ]
    return [(name, text) for name, text in rows if text]


def _untrained(group: TrajectoryGroup) -> int:
    return sum(not turn.trained for trajectory in group.trajectories for turn in trajectory.turns)


def _not_counted(group: TrajectoryGroup) -> int:
    """Turns that are no trained acts."""
    turns = [turn for trajectory in group.trajectories for turn in trajectory.turns]
    return sum(turn.kind == "summary" or not turn.trained for turn in turns)


def _sandboxes(summary: Summary) -> str:
    several = len(summary.images) > 1
    return counts(summary.sandboxes) + (f", from {len(summary.images):,} images" if several else "")


def _without_peer(summary: Summary) -> str:
    if not summary.turns_without_peer:
        return ""
    share = summary.turns_without_peer / summary.credited_turns
    turns = f"{summary.turns_without_peer:,} of {summary.credited_turns:,} turns ({share:.1%})"
    return f"{turns}, whose advantage is their raw return"


def duration(seconds: float) -> str:
    """A length of time for people: `8.3 s`, `2:05 min`, `1:02:03 h`."""
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, whole = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{whole:02} h" if hours else f"{minutes}:{whole:02} min"


def _range(spread: Spread) -> str:
    if not spread.count:
        return "-"
    deviation = "" if spread.sd is None else f", sd {spread.sd:.3f}"
    return f"mean {spread.mean:.3f}{deviation}, min {spread.low:g}, max {spread.high:g}"
