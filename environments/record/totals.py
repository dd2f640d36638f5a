"""Statistics of groups, and how totals merge.

A total's type says how it merges: numbers are summed, mappings merge by key, lists by index. The summaries of
two sets of groups merge into that of both, exact but for rounding.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import chain, starmap, zip_longest
from typing import Any, cast

from environments.credit import without_peer_of
from environments.credit.terms import vary
from environments.record.diagnosis import cause_of
from environments.trajectory import (
    CreditedGroup,
    Failure,
    JudgeCall,
    Rewards,
    Trajectory,
    TrajectoryGroup,
)
from tools.plain_text import printable, shorten

EVALUATED = "evaluated"
OTHER = "other"
OTHER_NAMES = "other names"
MAX_NAMES = 20
MAX_TEXTS = 1000
MAX_INDICES = 128
"""Entries of `by_turn`; the last covers all later acts."""
TEXT_CHARS = 160
_NAME_CHARS = 40
BETWEEN_CALLS = "between calls"


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    count: int = 0
    total: float = 0.0
    low: float = math.inf
    high: float = -math.inf
    centre: float = 0.0
    """The mean by an update formula, with an error that does not grow."""
    squares: float = 0.0
    """Sum of squared distances from the mean (Chan, Golub and LeVeque, "Updating formulae …", 1979)."""

    @staticmethod
    def of(numbers: Iterable[float | None]) -> "Spread":
        known = [number for number in numbers if number is not None]
        if not known:
            return Spread()
        total = _sum(known)
        centre = total / len(known)
        return Spread(
            count=len(known),
            total=total,
            low=min(known),
            high=max(known),
            centre=centre,
            squares=sum((number - centre) * (number - centre) for number in known),
        )

    def merge(self, other: "Spread") -> "Spread":
        if not (self.count and other.count):
            return self if self.count else other
        count, distance = self.count + other.count, other.centre - self.centre
        return Spread(
            count=count,
            total=self.total + other.total,
            low=min(self.low, other.low),
            high=max(self.high, other.high),
            centre=self.centre + distance * (other.count / count),
            squares=self.squares + other.squares + distance * distance * (self.count * other.count / count),
        )

    @property
    def mean(self) -> float | None:
        return self.total / self.count if self.count else None

    @property
    def sd(self) -> float | None:
        known = self.count > 1 and 0.0 <= self.squares < math.inf
        return math.sqrt(self.squares / (self.count - 1)) if known else None

    def values(self) -> dict[str, float | None]:
        known = {"mean": self.mean, "sd": self.sd, "min": self.low, "max": self.high}
        return {"count": self.count, **{name: _finite(value) for name, value in known.items()}}


class Tally(dict[str, int]):
    """Counts by text; texts beyond `MAX_TEXTS`, in sort order, are summed as `OTHER`."""

    @staticmethod
    def of(texts: Iterable[str]) -> "Tally":
        return Tally(Counter(" ".join(text.split())[:TEXT_CHARS] for text in texts))

    def merge(self, other: "Tally") -> "Tally":
        sums = Counter(self) + Counter(other)
        for text in sorted(sums.keys() - {OTHER})[MAX_TEXTS:]:
            sums[OTHER] += sums.pop(text)
        return Tally(sums)

    def counts(self) -> dict[str, int]:
        frequent = sorted(self.keys() - {OTHER}, key=lambda text: (-self[text], text))
        counts = {text: self[text] for text in frequent[:MAX_NAMES]}
        others = sum(self.values()) - sum(counts.values())
        return counts | ({OTHER: others} if others else {})


class NamedSpreads(dict[str, Spread]):
    """One `Spread` per name, for at most `MAX_NAMES` names; values of further names are only counted."""

    @staticmethod
    def of(named: Iterable[Mapping[str, float]]) -> "NamedSpreads":
        numbers = defaultdict[str, list[float]](list)
        for each in named:
            for name, number in each.items():
                numbers[shorten(" ".join(printable(name).split()), _NAME_CHARS)].append(number)
        return NamedSpreads().merge({name: Spread.of(each) for name, each in numbers.items()})

    def merge(self, other: Mapping[str, Spread]) -> "NamedSpreads":
        none = Spread()
        both = {name: self.get(name, none).merge(other.get(name, none)) for name in {**self, **other}}
        names = sorted(both.keys() - {OTHER_NAMES})
        kept = NamedSpreads({name: both[name] for name in names[:MAX_NAMES]})
        left_out = sum(both[name].count for name in both.keys() - kept.keys())
        if left_out:
            kept[OTHER_NAMES] = Spread(count=left_out, total=math.nan)
        return kept


class Distinct(dict[str, None]):
    def merge(self, other: "Distinct") -> "Distinct":
        return Distinct({**self, **other})


class Most(float):
    def merge(self, other: "Most") -> "Most":
        return max(self, other)


class Summary:
    def __init__(self, groups: Iterable[CreditedGroup] = ()) -> None:
        self.totals: dict[str, Any] = collect_totals(TrajectoryGroup(trajectories=()), EVALUATED) | {
            "groups": Tally()
        }
        for credited in groups:
            self.add(credited)

    def add(self, credited: CreditedGroup) -> None:
        if credited.group.is_evaluation:
            self.add_rollouts(credited.group, "failed" if credited.status == "failed" else EVALUATED)
        else:
            self.totals = merge(self.totals, collect_totals(credited.group, credited.status, credited))

    def add_rollouts(self, group: TrajectoryGroup, status: str) -> None:
        self.totals = merge(self.totals, collect_totals(group, status))

    def merge(self, other: "Summary") -> None:
        self.totals = merge(self.totals, other.totals)

    @property
    def groups(self) -> Counter[str]:
        return Counter(self.totals["groups"].counts())

    @property
    def done(self) -> int:
        return self.groups.total()

    def values(self) -> dict[str, Any]:
        """Return all numbers as nested JSON values, with None for unknown ones.

        `by_turn` has an entry per index of an act, from 0; the entry with `later` covers all later acts.
        """
        numbers = _as_json(self.totals)
        numbers["groups"] = {"done": self.done, **numbers["groups"]}
        for index, each in enumerate(numbers["by_turn"]):
            later = {"later": True} if index == MAX_INDICES - 1 else {}
            numbers["by_turn"][index] = {"turn": index, **later, **each}
        against = numbers["score_against"]
        numbers["score_against"] = {name: _correlation(sums) for name, sums in against.items()}
        versions = [_format_version(each) for each in self.totals["weights"]["versions"]] or [None]
        numbers["weights"] |= {"oldest": versions[0], "newest": versions[-1]}
        condensed, rollouts = numbers["condensed"], numbers["rollouts"]["kept"]
        if condensed["times"] or condensed["summaries"]:
            condensed["is_estimate"] = condensed["is_estimate"] > 0
            condensed["per_rollout"] = condensed["times"] / rollouts
            condensed["summaries_per_rollout"] = condensed["summaries"] / rollouts
        else:
            condensed.clear()
        if time := numbers["time"]:
            rest_s = max(0.0, time["rollout_s"] - sum(time["own_s"].values()))
            own_s = (time["own_s"] | {BETWEEN_CALLS: rest_s}).items()
            longest = sorted(own_s, key=lambda entry: (-entry[1], entry[0]))
            time["share"] = {name: seconds / time["rollout_s"] for name, seconds in longest}
        return numbers


def merge(one: Any, other: Any) -> Any:
    """Merge two totals of one statistic; None stands for an unknown total."""
    if isinstance(one, Spread | Tally | NamedSpreads | Distinct | Most):
        return one.merge(other)
    if isinstance(one, dict):
        ours, others = cast("dict[str, Any]", one), cast("dict[str, Any]", other)
        both = {name: merge(ours[name], total) for name, total in others.items() if name in ours}
        return ours | others | both
    if isinstance(one, list):
        shorter, longer = sorted((cast("list[Any]", one), cast("list[Any]", other)), key=len)
        return [*starmap(merge, zip(shorter, longer, strict=False)), *longer[len(shorter) :]]
    return None if one is None or other is None else one + other


def collect_totals(
    group: TrajectoryGroup, status: str, credited: CreditedGroup | None = None
) -> dict[str, Any]:
    rollouts, profiled = group.trajectories, [*group.trajectories, *group.failures, group]
    stale = [each for each in rollouts if each.stale is not None]
    turns = [turn for each in rollouts for turn in each.own_turns]
    # Branches begin where a hook may have found something wrong, and would tilt the mean.
    trunks = [each for each in rollouts if each.trunk is None]
    condensed = [turn.condensed for turn in turns if turn.condensed is not None]
    results = [result for turn in turns for result in turn.tool_results]
    rewards = [each.rewards for each in trunks if each.rewards is not None]
    summaries = [turn for turn in turns if turn.kind == "summary"]
    sampled = sum(turn.sampled_tokens for turn in turns)
    of_summaries = sum(turn.sampled_tokens for turn in summaries)
    exact = sum(turn.sampled_tokens for each in rollouts if each.exact for turn in each.own_turns)
    prompts = sum(turn.prompt_tokens for turn in turns)
    siblings, tokens = (*group.failures, *rollouts), ("prompt_tokens", "completion_tokens")
    calls: dict[str, list[JudgeCall]] = {
        "judge": [*group.judge_calls, *(call for each in siblings for call in each.judge_calls)],
        "user": [call for each in siblings for call in each.user_calls],
        "summariser": [call for each in siblings for call in each.summariser_calls],
        "other": [call for each in siblings for call in each.other_calls],
    }
    has_credit = credited is not None and status != "failed"
    cause = None if credited is None else cause_of(credited)
    return {
        "groups": Tally.of([status]),
        "policies": Tally.of([] if credited is None else [credited.policy]),
        "reasons": Tally.of([] if cause is None else [str(cause)]),
        "rollouts": {"kept": len(rollouts), "dropped": len(group.failures)},
        "failures": Tally.of(each.kind for each in group.failures),
        "failure_classes": Tally.of(_error_class(each) for each in group.failures),
        # The agent may have caused these; rollouts that it broke for certain get failed_score.
        "dropped_after_acting": Tally.of(_error_class(each) for each in group.failures if each.turns),
        "agent_caused": Tally.of(each.agent_caused.cause for each in rollouts if each.agent_caused),
        "score": Spread.of(each.score for each in trunks),
        "honest_score": Spread.of(each.score for each in trunks if each.agent_caused is None),
        "turns": Spread.of(len(each.acts) for each in trunks),
        "score_against": {
            "turns": _covary(trunks, lambda each: len(each.acts)),
            "tokens": _covary(trunks, lambda each: sum(turn.sampled_tokens for turn in each.turns)),
        },
        "by_turn": _by_turn(group, credited if has_credit else None),
        # Parts are weighted and summed over a trajectory; raw ones are unweighted, per turn and outcome.
        "parts": NamedSpreads.of(map(sum_parts, rewards)),
        "raw": NamedSpreads.of(raw for each in rewards for raw in (*each.turn_raw, each.outcome_raw)),
        "metrics": NamedSpreads.of(each.metrics for each in trunks),
        "stop_reasons": Tally.of(
            each.stop_reason.value
            if each.end_reason is None
            else f"{each.stop_reason.value}: {each.end_reason}"
            for each in rollouts
        ),
        "tools": {
            "calls": len(results),
            "errors": Tally.of(result.error for result in results if result.error is not None),
        },
        "tokens": {
            "sampled": sampled,
            "acts": sampled - of_summaries,
            "summaries": of_summaries,
            "exact": exact,
            "approximate": sampled - exact,
            "prompts": prompts,  # tokens that the model saw, over all calls
        },
        "forks": {
            "turns": len(turns),
            "forked": sum(turn.fork is not None for turn in turns),
            "causes": Tally.of(turn.fork for turn in turns if turn.fork is not None),
            "row_tokens": sum(len(row.token_ids) for each in rollouts for row in each.rows),
            "sampled_tokens": sum(turn.span.end - turn.span.start for turn in turns),
        },
        "condensed": {
            "times": len(condensed),
            "rollouts": sum(any(turn.condensed for turn in each.own_turns) for each in rollouts),
            "tokens_before": Spread.of(each.tokens_before for each in condensed),
            "tokens_after": Spread.of(each.tokens_after for each in condensed),
            "is_estimate": sum(each.is_estimate for each in condensed),
            "seconds": sum(each.seconds for each in condensed),
            "causes": Tally.of(each.cause for each in condensed),
            "summaries": len(summaries),
        },
        "cost": {
            "rollout_s": sum(each.wall_s for each in rollouts),
            "model_s": sum(turn.model_s for turn in turns),
            "tools_s": sum(turn.tools_s for turn in turns),
            "policy": {"prompt_tokens": prompts, "completion_tokens": sampled},
            **{
                role: {"answers": len(made)}
                | {name: sum(call.usage.get(name, 0) for call in made) for name in tokens}
                for role, made in calls.items()
                if made
            },
        },
        "credit": {
            "turns": sum(turn.kind == "act" and turn.trained for turn in turns) if has_credit else 0,
            "without_peer": credited.turns_without_peer if credited is not None and has_credit else 0,
            "untrained": sum(not turn.trained for turn in turns),
        },
        "weights": {
            "versions": Distinct.fromkeys(each for each in group.weight_versions if each is not None),
            "groups": Tally.of([_count_versions(group.weight_versions)] if rollouts else []),
            "rollouts": Tally.of(_count_versions(each.weight_versions) for each in rollouts),
            "stale": int(group.stale is not None),
            # Staleness selects by length, so withheld turns are not spread evenly.
            "turns_by_length": Tally.of(chain.from_iterable(map(_length_buckets, rollouts))),
            "withheld_turns": Tally.of(chain.from_iterable(map(_length_buckets, stale))),
        },
        "sandboxes": {
            "rollouts": Tally.of(
                f"{each.sandbox.backend} {each.sandbox.tier}" if each.sandbox else "none" for each in rollouts
            ),
            "images": Distinct.fromkeys(
                each.sandbox.image for each in rollouts if each.sandbox and each.sandbox.image
            ),
        },
        "time": reduce(merge, map(_times, profiled), {}),
    }


def sum_parts(rewards: Rewards) -> dict[str, float]:
    sums: Counter[str] = Counter()
    for parts in (*rewards.turn_components, rewards.outcome_components):
        sums.update(parts)
    return dict(sums)


def _as_json(total: Any) -> Any:
    if isinstance(total, Spread):
        return total.values()
    if isinstance(total, Tally):
        return total.counts()
    if isinstance(total, Distinct):
        return len(total)
    if isinstance(total, dict):
        return {name: _as_json(each) for name, each in cast("dict[str, Any]", total).items()}
    if isinstance(total, list):
        return [_as_json(each) for each in cast("list[Any]", total)]
    return float(total) if isinstance(total, Most) else _finite(total)


def _sum(numbers: Sequence[float]) -> float:
    try:
        return math.fsum(numbers)
    except OverflowError:
        return math.nan


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _covary(rollouts: Sequence[Trajectory], size: Callable[[Trajectory], int]) -> dict[str, float]:
    """Return centred squares and products of siblings' scores and sizes."""
    pairs = [(each.score, size(each)) for each in rollouts if each.score is not None]
    scores, sizes = Spread.of(score for score, _ in pairs), Spread.of(size for _, size in pairs)
    product = _sum([(score - scores.centre) * (size - sizes.centre) for score, size in pairs])
    return {"scores": scores.squares, "sizes": sizes.squares, "both": product}


def _correlation(sums: Mapping[str, float | None]) -> float | None:
    scores, sizes, both = (sums[name] for name in ("scores", "sizes", "both"))
    if not scores or not sizes or both is None:
        return None
    return max(-1.0, min(1.0, both / (math.sqrt(scores) * math.sqrt(sizes))))


def _by_turn(group: TrajectoryGroup, credited: CreditedGroup | None) -> list[dict[str, Any]]:
    rows = [()] * len(group.trajectories) if credited is None else credited.advantages
    acts = [
        [
            *zip_longest(
                each.acts,
                each.act_rewards or (),
                (value for value, turn in zip(row, each.turns, strict=False) if turn.kind == "act"),
            )
        ]
        for each, row in zip(group.trajectories, rows, strict=True)
    ]
    # A branch begins after the acts that it replayed.
    starts = [
        len(each.acts) - sum(turn.kind == "act" for turn in each.own_turns) for each in group.trajectories
    ]
    trunks = [row for row, each in zip(acts, group.trajectories, strict=True) if each.trunk is None]
    alone = () if credited is None else without_peer_of(credited)
    by_turn: list[dict[str, Any]] = []
    for index in range(max(map(len, acts), default=0)):
        here = [row[index] for row, start in zip(acts, starts, strict=True) if start <= index < len(row)]
        of_trunks = [row[index] for row in trunks if index < len(row)]
        results = [result for act, _, _ in here for result in act.tool_results]
        advantages = [advantage for act, _, advantage in here if act.trained and advantage is not None]
        by_turn.append(
            {
                "rollouts": len(of_trunks),
                "scored": sum(reward is not None for _, reward, _ in of_trunks),
                "reward": Spread.of(reward for _, reward, _ in of_trunks),
                "advantage": Spread.of(advantages),
                "tokens": Spread.of(act.sampled_tokens for act, _, _ in here),
                # The advantage of these is their raw return.
                "without_peer": None
                if alone is None
                else sum(row[index] for row in alone if index < len(row)),
                # Groups with credit and at least two trained acts here, which could differ.
                "groups": int(len(advantages) > 1),
                # Among these, groups in which the choice of act taught nothing.
                "groups_without_spread": int(len(advantages) > 1 and not vary(advantages)),
                "tool_calls": len(results),
                "tool_errors": sum(result.error is not None for result in results),
            }
        )
    kept, later = by_turn[: MAX_INDICES - 1], by_turn[MAX_INDICES - 1 :]
    return [*kept, *([reduce(merge, later)] if later else [])]


def _times(of: Trajectory | Failure | TrajectoryGroup) -> dict[str, Any]:
    if of.profile is None:
        return {}
    calls = of.profile.calls.items()
    times: dict[str, Any] = {
        "rollout_s": of.profile.wall_s,
        "calls": {name: each.count for name, each in calls},
        "own_s": {name: each.own_s for name, each in calls},
        "total_s": {name: each.total_s for name, each in calls},
        "longest_s": {name: Most(each.max_s) for name, each in calls},
    }
    if isinstance(of, Trajectory):
        times["prompt_tokens"] = Spread.of(turn.prompt_tokens for turn in of.turns)
        times["sampled_tokens"] = Spread.of(turn.sampled_tokens for turn in of.turns)
    return times


def _error_class(failure: Failure) -> str:
    return failure.error_class or failure.error.partition(": ")[0]


def _length_buckets(trajectory: Trajectory) -> list[str]:
    """Return a range of lengths (1, 2-3, 4-7, …), once per act."""
    count = len(trajectory.acts)
    low = 1 << max(0, count.bit_length() - 1)
    return [f"{low}" if low == 1 else f"{low}-{2 * low - 1}"] * count


def _count_versions(versions: Sequence[str | None]) -> str:
    if not versions or None in versions:
        return "unknown"
    return str(len(versions)) if len(versions) < 3 else "more"


def _format_version(version: str) -> str:
    if len(version) > _NAME_CHARS:  # the end of a path identifies it
        version = f"{version[: _NAME_CHARS // 2]}…{version[1 - _NAME_CHARS // 2 :]}"
    return printable(version)
