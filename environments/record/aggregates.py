"""The numbers of a run as JSON values: the one place that every file, chart and page takes them from."""

from collections.abc import Iterator, Mapping
from typing import Any, cast

from environments.record.summary import Summary

CHARTED_TURNS = 16
"""Indices of turns that have names of their own where numbers are flat; `aggregates` has all of them."""


def aggregates(summary: Summary) -> dict[str, Any]:
    """What a summary holds, in nested JSON values; `None` stands where a number is unknown, and never NaN.

    A spread has `count`, `mean`, `sd` (of a sample), `min` and `max`. `by_turn` has an entry per index among
    the acts (see `environments.record.turn_totals`).
    """
    measured = summary.measured
    return {
        "groups": {"done": summary.done, **summary.groups},
        "reasons": dict(summary.reasons),
        "rollouts": {"kept": summary.turns.count, "dropped": summary.failure_classes.total()},
        "failures": dict(summary.failures),
        "failure_classes": dict(summary.failure_classes),
        "score": summary.score.values(),
        "turns": summary.turns.values(),
        "by_turn": summary.by_turn.values(),
        "parts": measured.parts.values(),
        "raw": measured.raw.values(),
        "metrics": measured.metrics.values(),
        "stop_reasons": dict(summary.stop_reasons),
        "tools": {"calls": summary.tool_calls, "errors": dict(summary.tool_errors)},
        "tokens": summary.cost.tokens(),
        "forks": summary.forks.values(),
        "condensed": summary.condensations.values(),
        "cost": summary.cost.values(),
        "credit": {
            "turns": summary.credited_turns,
            "without_peer": summary.turns_without_peer,
            "untrained": summary.untrained_turns,
        },
        "weights": summary.weights.values(),
        "sandboxes": {"rollouts": dict(summary.sandboxes), "images": len(summary.images)},
        "time": summary.profiles.values(),
    }


def flat(numbers: Mapping[str, Any], prefix: str) -> dict[str, float]:
    """Aggregates as one number per name, for charts: `PREFIX/score/mean`, `PREFIX/turn/01/reward`, ….

    The most telling come first. What is unknown is left out, as are texts: of parts and metrics there is the
    mean, of turns the first `CHARTED_TURNS`.
    """
    condensed, time = numbers["condensed"], numbers["time"]
    charted = {
        **{name: numbers[name] for name in ("score", "turns", "groups", "rollouts")},
        "turn": {f"{each['turn'] + 1:02}": _charted(each) for each in numbers["by_turn"][:CHARTED_TURNS]},
        "credit": numbers["credit"],
        "part": _means(numbers["parts"]),
        "metric": _means(numbers["metrics"]),
        "raw": _means(numbers["raw"]),
        "tokens": numbers["tokens"],
        "stop_reason": numbers["stop_reasons"],
        "failure": numbers["failure_classes"],
        "tool_calls": numbers["tools"]["calls"],
        "tool_error": numbers["tools"]["errors"],
        "forks": _without(numbers["forks"], "causes"),
        "condensed": {**_without(condensed, "causes"), **_means(_spreads(condensed))},
        "cost": numbers["cost"],
        "weights": numbers["weights"],
        "time_share": time.get("share", {}),
        "calls": time.get("calls", {}),
    }
    return {f"{prefix}/{name}": value for name, value in _leaves("", charted)}


def _charted(turn: Mapping[str, Any]) -> dict[str, Any]:
    """What of one index is worth a chart."""
    counted = ("rollouts", "scored", "without_peer", "groups_without_spread", "tool_errors")
    return {
        "reward": turn["reward"]["mean"],
        "advantage": turn["advantage"]["mean"],
        "advantage_sd": turn["advantage"]["sd"],
        "tokens": turn["tokens"]["mean"],
        **{name: turn[name] for name in counted},
    }


def _spreads(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if isinstance(value, Mapping) and "mean" in value}


def _means(spreads: Mapping[str, Any]) -> dict[str, float | None]:
    return {name: spread["mean"] for name, spread in spreads.items()}


def _without(values: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key != name}


def _leaves(path: str, values: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _leaves(f"{path}{name}/", cast("Mapping[str, Any]", value))
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield f"{path}{name}", float(value)
