"""A run's numbers for people and for charts."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from shlex import quote
from typing import Any, cast

from rich.console import Console
from rich.text import Text

from environments.record.diagnosis import diagnosis_of
from environments.record.totals import OTHER_NAMES, Summary
from tools.plain_text import count_noun, decimals

Numbers = Mapping[str, Any]
CHARTED_TURNS = 16
SHOWN_TURNS = 12
SHOWN_CALLS = 16
HEADLINE_NAMES = 3
REMEDIES = {
    "template": "the server renders earlier turns otherwise than they were sampled: use a chat template that "
    "keeps all of it (--openai.extra_body.chat_template_kwargs), or token ids (--openai.server_type vllm or "
    "sglang)",
    "history": "a condenser shortened what the model saw: a larger budget (--env.condenser_tokens) makes "
    "fewer, longer rows, and keep_last_turns makes one a turn",
    "renderer": "the chat format cannot extend the sampled tokens; --openai.family chooses another",
}
MANY_BROKEN = 0.05
"""Report a place of the code that dropped this share of all rollouts."""
_PLACE = re.compile(r" \(([^()]+:\d+ in [^()]+)\)$")
_ROLES = ("judge", "user", "summariser", "other")


def print_summary(
    console: Console, summary: Summary, *, path: str | None, wall_s: float, loop: float | None = None
) -> None:
    print_rows(console, summary_rows(summary.values(), wall_s=wall_s, loop=loop))
    if path is not None:
        console.print(Text(f"look at its rollouts: turnwise view {quote(path)}"), soft_wrap=True)
        console.print(Text(path, style="bold"), soft_wrap=True)


def print_side_notes(console: Console, summary: Summary) -> None:
    rows = dict(summary_rows(summary.values(), wall_s=0.0))
    wanted = (
        "broken by agents",
        "dropped rollouts",
        "dropped after acting",
        "skipped groups",
        "what to do",
        "condensed",
        "summaries",
        "forks",
        "weights",
        *_ROLES,
    )
    shown = [(name, rows[name]) for name in (*wanted, "time", "tokens by call") if name in rows]
    print_rows(console, [(name, text) for name, text in shown if text != "none"])


def print_rows(console: Console, rows: Sequence[tuple[str, str]]) -> None:
    width = max((len(name) for name, _ in rows), default=0) + 2
    for name, text in rows:
        for number, line in enumerate(text.split("\n")):
            head = Text(f"{'' if number else name:<{width}}", style="bold")
            console.print(head.append(line, style="not bold"), soft_wrap=True)


def summary_rows(numbers: Numbers, *, wall_s: float, loop: float | None = None) -> list[tuple[str, str]]:
    groups, credit, tokens = dict(numbers["groups"]), numbers["credit"], numbers["tokens"]
    done, images = groups.pop("done"), numbers["sandboxes"]["images"]
    untrained, cost, found = credit["untrained"], numbers["cost"], diagnosis_of(numbers)
    # Towards 1, rollouts that are longer than their siblings score more; towards -1, less.
    correlations = numbers["score_against"].items()
    against = ", ".join(f"{name} {value:+.2f}" for name, value in correlations if value is not None)
    alone, turns, without_peer = credit["without_peer"], credit["turns"], ""
    if alone and turns:
        share = f"{alone:,} of {turns:,} turns ({alone / turns:.1%})"
        without_peer = f"{share}, whose advantage is their raw return"
    a_rollout = ""
    if seconds := cost["rollout_s"]:
        kept = numbers["rollouts"]["kept"]
        sampled, read = tokens["sampled"] / kept, tokens["prompts"] / kept
        mean_s = _format_seconds(seconds / kept)
        a_rollout = f"{sampled:,.0f} tokens sampled, {read:,.0f} read, {mean_s} on average"
    rows = [
        ("groups", f"{done}" + counts(groups, " (", ")")),
        ("score", _format_range(numbers["score"])),
        ("played by", ", ".join(numbers["policies"])),
        ("turns", _format_range(numbers["turns"])),
        ("score against", f"{against} (correlation among siblings)" if against else ""),
        ("reward by turn", rewards_by_turn(numbers["by_turn"])),
        *metric_rows(numbers),
        ("without a peer", without_peer),
        ("not trained", f"{untrained:,} turns" if untrained else ""),
        ("stop reasons", counts(numbers["stop_reasons"])),
        ("tool calls", f"{numbers['tools']['calls']:,}"),
        ("tool errors", counts(numbers["tools"]["errors"]) or "none"),
        ("broken by agents", counts(numbers["agent_caused"], after=" (scored with failed_score)")),
        ("dropped rollouts", lines(numbers["failures"]) or "none"),
        ("broken code", _find_broken_code(numbers)),
        ("dropped after acting", counts(numbers["dropped_after_acting"])),
        ("skipped groups", lines(numbers["reasons"]) or "none"),
        ("what to do", found.remedy if 2 * found.with_credit < found.groups else ""),
        (
            "tokens sampled",
            ", ".join(f"{tokens[kind]:,} {kind}" for kind in ("exact", "approximate") if tokens[kind]),
        ),
        ("a rollout", a_rollout),
        *_condenser_rows(numbers),
        ("forks", _forks(numbers["forks"])),
        *((role, _answers(cost[role])) for role in _ROLES if role in cost),
        ("weights", weights_text(numbers)),
        (
            "sandboxes",
            counts(numbers["sandboxes"]["rollouts"]) + (f", from {images:,} images" if images > 1 else ""),
        ),
        *_time_rows(numbers["time"]),
        *loop_rows(loop),
        ("wall time", duration(wall_s)),
    ]
    return [(name, text) for name, text in rows if text]


def metric_rows(numbers: Numbers) -> list[tuple[str, str]]:
    rows: list[tuple[str, str]] = []
    for name, kind in (("reward by part", "parts"), ("before weights", "raw"), ("metrics", "metrics")):
        spreads = numbers[kind]
        shown = [
            f"{each}: {decimals(mean)} ({spreads[each]['count']:,})" for each, mean in _means(spreads).items()
        ]
        if OTHER_NAMES in spreads:
            shown.append(f"and {spreads[OTHER_NAMES]['count']:,} numbers of other names")
        rows += [(name, "  ".join(shown))] if shown else []
    return rows


def loop_rows(loop: float | None) -> list[tuple[str, str]]:
    return [] if loop is None else [("event loop", f"busy {loop:.0%} of the time that it could run")]


def headline(numbers: Numbers) -> str:
    means = [*_means(numbers["parts"]).items(), *_means(numbers["metrics"]).items()]
    more = [f"+{len(means) - HEADLINE_NAMES}"] if means[HEADLINE_NAMES:] else []
    return ", ".join([*(f"{name} {decimals(mean)}" for name, mean in means[:HEADLINE_NAMES]), *more])


def forks_in_short(numbers: Numbers) -> str:
    forks = numbers["forks"]
    return f"forks {forks['forked']:,}, {_token_ratio(forks)}" if forks["forked"] else ""


def weights_text(numbers: Numbers) -> str:
    weights = numbers["weights"]
    count, groups, rollouts = weights["versions"], weights["groups"], weights["rollouts"]
    several = f"{count:,} versions, {weights['oldest']} to {weights['newest']}"
    parts = {
        "groups of several": groups.get("2", 0) + groups.get("more", 0),
        "rollouts of several": rollouts.get("2", 0) + rollouts.get("more", 0),
        "groups of unknown ones": groups.get("unknown", 0),
        "stale groups": weights["stale"],
    }
    texts = [several if count > 1 else weights["oldest"]]
    texts += [f"{name} {number:,}" for name, number in parts.items() if number]
    if withheld := weights["withheld_turns"]:
        lengths = sorted(weights["turns_by_length"].items(), key=lambda each: int(each[0].partition("-")[0]))
        shares = ", ".join(
            f"{withheld.get(name, 0) / turns:.0%} of {name}" for name, turns in lengths if turns
        )
        texts.append(f"withheld turns {sum(withheld.values()):,}, by the turns of a rollout {shares}")
    return ", ".join(texts) if count else ""


def counts(counted: Mapping[str, int], before: str = "", after: str = "") -> str:
    """Return `name 3, other 1`, the most frequent first, or ""."""
    text = ", ".join(f"{name} {count:,}" for name, count in _most(counted))
    return f"{before}{text}{after}" if text else ""


def lines(counted: Mapping[str, int]) -> str:
    return "\n".join(f"{count}x {text}" for text, count in _most(counted))


def duration(seconds: float) -> str:
    """Format a time for people: `8.3 s`, `2:05 min`, `1:02:03 h`."""
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, whole = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{whole:02} h" if hours else f"{minutes}:{whole:02} min"


def flat(numbers: Numbers, prefix: str = "") -> dict[str, float]:
    """Return one number per name for charts, the most telling first: `PREFIX/turn/01/reward`, …."""
    condensed, time = dict(numbers["condensed"]), numbers["time"]
    for name in ("tokens_before", "tokens_after"):
        if name in condensed:
            condensed[name] = condensed[name]["mean"]
    counted = ("rollouts", "scored", "without_peer", "groups_without_spread", "tool_errors")
    charted = {
        **{name: numbers[name] for name in ("score", "turns", "groups", "rollouts", "score_against")},
        "turn": {
            f"{each['turn'] + 1:02}": {
                "reward": each["reward"]["mean"],
                "advantage": each["advantage"]["mean"],
                "advantage_sd": each["advantage"]["sd"],
                "tokens": each["tokens"]["mean"],
                **{name: each[name] for name in counted},
            }
            for each in numbers["by_turn"][:CHARTED_TURNS]
        },
        "credit": numbers["credit"],
        "part": _means(numbers["parts"]),
        "metric": _means(numbers["metrics"]),
        "raw": _means(numbers["raw"]),
        "tokens": numbers["tokens"],
        "stop_reason": numbers["stop_reasons"],
        "failure": numbers["failure_classes"],
        "dropped_after_acting": numbers["dropped_after_acting"],
        "agent_caused": numbers["agent_caused"],
        "tool_calls": numbers["tools"]["calls"],
        "tool_error": numbers["tools"]["errors"],
        "forks": {name: value for name, value in numbers["forks"].items() if name != "causes"},
        "condensed": {name: value for name, value in condensed.items() if name != "causes"},
        "cost": numbers["cost"],
        "weights": numbers["weights"],
        "time_share": time.get("share", {}),
        "calls": time.get("calls", {}),
    }
    return dict(_leaves(f"{prefix}/" if prefix else "", charted))


def _leaves(path: str, values: Numbers) -> Iterator[tuple[str, float]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _leaves(f"{path}{name}/", cast("Numbers", value))
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield f"{path}{name}", float(value)


def _most(counted: Mapping[str, int]) -> list[tuple[str, int]]:
    return sorted(counted.items(), key=lambda entry: (-entry[1], entry[0]))


def _means(spreads: Numbers) -> dict[str, float]:
    return {name: each["mean"] for name, each in spreads.items() if each["mean"] is not None}


def _format_range(spread: Numbers) -> str:
    if not spread["count"]:
        return "-"
    deviation = "" if spread["sd"] is None else f", sd {decimals(spread['sd'])}"
    return f"mean {decimals(spread['mean'])}{deviation}, min {spread['min']:g}, max {spread['max']:g}"


def rewards_by_turn(by_turn: Sequence[Numbers]) -> str:
    scored = [
        (index, each["reward"]) for index, each in enumerate(by_turn) if each["reward"]["mean"] is not None
    ]
    shown = [f"{index + 1}: {decimals(each['mean'])}" for index, each in scored if index < SHOWN_TURNS]
    later = [each for index, each in scored if index >= SHOWN_TURNS]
    if later:
        mean = sum(each["mean"] * each["count"] for each in later) / sum(each["count"] for each in later)
        shown.append(f"{SHOWN_TURNS + 1}+: {decimals(mean)}")
    return "  ".join(shown)


def _find_broken_code(numbers: Numbers) -> str:
    rollouts, places = numbers["rollouts"]["kept"] + numbers["rollouts"]["dropped"], Counter[str]()
    for kind, count in numbers["failures"].items():
        if (found := _PLACE.search(kind)) is not None:
            places[found[1]] += count
    often = [
        (place, count / rollouts) for place, count in places.most_common() if count >= MANY_BROKEN * rollouts
    ]
    return "\n".join(
        f"{place} dropped {share:.0%} of all rollouts, and not at random: fix it" for place, share in often
    )


def _condenser_rows(numbers: Numbers) -> Iterator[tuple[str, str]]:
    condensed = numbers["condensed"]
    if not condensed:
        return
    if condensed["times"]:
        about = ", estimated" if condensed["is_estimate"] else ""
        before, after = condensed["tokens_before"]["mean"], condensed["tokens_after"]["mean"]
        yield (
            "condensed",
            f"{condensed['times']:,} times in {condensed['rollouts']:,} of {numbers['rollouts']['kept']:,} "
            f"rollouts, {before:,.0f} to {after:,.0f} tokens on average{about}, "
            f"{condensed['seconds']:.1f} s{counts(condensed['causes'], ': ')}",
        )
    if summaries := condensed["summaries"]:
        each = numbers["tokens"]["summaries"] / summaries
        yield "summaries", f"{summaries:,} by the policy, {each:,.0f} tokens on average"


def _forks(forks: Numbers) -> str:
    if not forks["causes"]:
        return ""
    forked = f"{forks['forked']:,} of {forks['turns']:,} turns began a new row: {counts(forks['causes'])}"
    cost = (
        f"a trainer gets {forks['row_tokens']:,} tokens for {forks['sampled_tokens']:,} sampled "
        f"({_token_ratio(forks)})"
    )
    kinds = dict.fromkeys(cause.partition(":")[0] for cause in forks["causes"])
    return "\n".join([forked, cost, *(f"{kind}: {REMEDIES[kind]}" for kind in kinds if kind in REMEDIES)])


def _token_ratio(forks: Numbers) -> str:
    if not forks["sampled_tokens"]:
        return "nothing sampled"
    return f"{forks['row_tokens'] / forks['sampled_tokens']:.3g} trainer tokens per sampled one"


def _answers(cost: Numbers) -> str:
    tokens = cost["prompt_tokens"] + cost["completion_tokens"]
    paid = f", {tokens:,} tokens" if tokens else ""
    return f"{count_noun(cost['answers'], 'answer')}{paid}"


def _time_rows(time: Numbers) -> Iterator[tuple[str, str]]:
    if not time:
        return
    whole_s = time["rollout_s"]
    shares = [*time["share"].items()]
    table = [("", "calls", "own time", "share", "with inner", "mean", "longest")]
    for name, share in shares[:SHOWN_CALLS]:
        calls, own, part = time["calls"].get(name), _format_seconds(share * whole_s), f"{share:.1%}"
        if calls is None:
            table.append((name, "", own, part, "", "", ""))
        else:
            inner_s, longest = time["total_s"][name], _format_seconds(time["longest_s"][name])
            mean = _format_seconds(inner_s / max(1, calls))
            table.append((name, f"{calls:,}", own, part, _format_seconds(inner_s), mean, longest))
    if later := shares[SHOWN_CALLS:]:
        share = sum(share for _, share in later)
        table.append(
            (f"and {len(later)} more", "", _format_seconds(share * whole_s), f"{share:.1%}", "", "", "")
        )
    table.append(("sum", "", _format_seconds(whole_s), f"{1:.1%}", "", "", ""))
    first, *widths = (max(map(len, column)) for column in zip(*table, strict=True))
    rows = ("  ".join([row[0].ljust(first), *map(str.rjust, row[1:], widths)]) for row in table)
    yield "time", "\n".join(map(str.rstrip, rows))
    spreads = [(kind, time[f"{kind}_tokens"]) for kind in ("prompt", "sampled") if f"{kind}_tokens" in time]
    yield (
        "tokens by call",
        ", ".join(
            f"{kind} {each['mean'] * each['count']:,.0f} (mean {each['mean']:,.0f}, most {each['max']:,.0f})"
            for kind, each in spreads
            if each["count"]
        ),
    )


def _format_seconds(seconds: float) -> str:
    """Format with three digits: `812 µs`, `12.3 ms`, `4.56 s`, `1,234 s`."""
    unit, value = ("s", seconds) if seconds >= 1 else ("ms", seconds * 1e3)
    if value < 1:
        unit, value = "µs", seconds * 1e6
    digits = 0 if value >= 100 else 1 if value >= 10 else 2
    return f"{value:,.{digits}f} {unit}" if value else "0 s"
