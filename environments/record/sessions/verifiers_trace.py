"""Traces of verifiers (v1, tested with 0.4.0) as sessions; the package is not needed.

A line is an episode with its agents' traces, or a trace. Reference: `verifiers.v1.trace.Trace`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from environments.policy.inference.chat_reply import (
    ReplyError,
    field_of,
    object_in,
    read_ids,
    read_logprobs,
)
from environments.policy.inference.written_messages import parse_entry, parse_tools
from environments.record.sessions.logged_session import (
    NO_SPAN,
    Scale,
    Session,
    SessionError,
    metrics_in,
    number,
)
from environments.rollout.agents.conversation import FORK, Seen, with_answers, with_contexts
from environments.rollout.rows import RowBuilder
from environments.trajectory import Completion, Message, Rewards, TokenRow, Turn
from environments.turn_level_reward import aggregate

_MOST_REPEATED = 1_000_000
TURN_REWARDS = "turn_rewards"
"""In a trace's `info`, a reward per sampled node; in its `rewards`, their sum."""


def is_trace(value: object) -> bool:
    fields = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
    return isinstance(fields.get("task"), dict) and ("nodes" in fields or "traces" in fields)


def read_traces(fields: Mapping[str, Any], scale: Scale) -> list[Session]:
    """Return the sessions of an episode's trainable agents, or of a single trace."""
    try:
        if "nodes" in fields:
            return [_session(fields, fields, scale)]
        traces = cast("list[dict[str, Any]]", field_of(fields, "traces", list) or [{**fields, "nodes": []}])
        trained = [each for each in traces if object_in(each, "agent").get("trainable") is not False]
        return [_session(each, fields, scale) for each in trained]
    except ReplyError as error:
        raise SessionError(str(error)) from None
    except (AttributeError, IndexError, KeyError, OverflowError, TypeError) as error:
        raise SessionError(f"not as verifiers writes a trace: {error}") from error


def _session(trace: Mapping[str, Any], episode: Mapping[str, Any], scale: Scale) -> Session:
    task, info = object_in(trace, "task"), object_in(trace, "info")
    data = {name: value for name, value in object_in(task, "data").items() if value is not None}
    errors = cast("list[dict[str, Any]]", field_of(trace, "errors", list) or [])
    failed = not trace.get("ok") and bool(errors)
    graph = _Graph([] if failed else cast("list[Any]", field_of(trace, "nodes", list) or []))
    turns = graph.turns(cast("list[dict[str, Any]]", field_of(trace, "calls", list) or []))
    turns, rows = graph.with_rows(turns)
    for index, kind in enumerate(cast("list[Any]", field_of(info, "turn_kinds", list) or [])):
        turns[index] = replace(turns[index], kind="summary" if kind == "summary" else "act")
    group = object_in(episode, "group").get("id", info.get("group_id"))
    return Session(
        session_id=field_of(trace, "id", str),
        item_id=_name(data, "id") or _name(task, "key") or _name(task, "hash"),
        # Agents of an episode have separate tasks.
        group=f"{group or ''}/{object_in(trace, 'agent').get('name') or 'agent'}",
        item=data,
        prompt=graph.prompt,
        turns=tuple(with_contexts(turns, graph.seen, graph.prompt)),
        rows=rows,
        tools=parse_tools(trace.get("tools")),
        model=next((turn.weight_version for turn in turns if turn.weight_version), None),
        rewards=Rewards(score=None) if failed else _rewards(trace, info, graph, scale),
        metrics=metrics_in(trace.get("metrics")),
        error=f"{errors[-1].get('type')}: {errors[-1].get('message')}" if failed else None,
    )


def _name(fields: Mapping[str, Any], field: str) -> str | None:
    name = field_of(fields, field, str, int, where="task.")
    return None if name is None else str(name)


class _Graph:
    """A trace's nodes; each leaf ends a branch, which is a token row."""

    def __init__(self, nodes: Sequence[Mapping[str, Any]]) -> None:
        self.nodes = nodes
        self._parents: list[int] = []
        self._threads: dict[int, Seen] = {-1: ([], 0)}
        """Messages up to each node: a list shared by a branch, and a length."""
        self._assistants = {-1: -1}
        self._repeated = 0
        for index, node in enumerate(nodes):
            self._add(index, node.get("parent"), self._message(index))
        self.sampled = [index for index, node in enumerate(nodes) if node.get("sampled")]
        self.seen = [self._threads[self._parents[index]] for index in self.sampled]
        messages, count = self.seen[0] if self.sampled else ([], 0)
        self.prompt = tuple(messages[:count])

    def _add(self, index: int, parent: Any, message: Message) -> None:
        if parent is not None and not (type(parent) is int and 0 <= parent < index):
            raise SessionError(f"nodes[{index}].parent is {parent!r:.100}; give the index of one before it")
        above: int = -1 if parent is None else parent
        messages, count = self._threads[above]
        if len(messages) > count:
            self._repeat(count)
            messages = messages[:count]
        messages.append(message)
        self._parents.append(above)
        self._threads[index] = (messages, count + 1)
        self._assistants[index] = index if message.role == "assistant" else self._assistants[above]

    def _repeat(self, count: int) -> None:
        self._repeated += count
        if self._repeated > _MOST_REPEATED:
            raise SessionError(f"its branches repeat more than {_MOST_REPEATED} nodes; give it in parts")

    def turns(self, calls: Sequence[Mapping[str, Any]]) -> list[Turn]:
        of_node = {call["node"]: call for call in calls if call.get("node") is not None}
        turns: list[Turn] = []
        self._turn_of: dict[int | Message, int] = {}
        for at, index in enumerate(self.sampled):
            (messages, count), call = self._threads[index], of_node.get(index, {})
            message = messages[count - 1]
            if message.role != "assistant":
                raise SessionError(f"nodes[{index}] is sampled and of role {message.role!r}; not assistant")
            self._answer(turns, self._parents[index])
            turn = Turn(
                index=at,
                message=message,
                finish_reason=field_of(call, "finish_reason", str)
                or ("tool_calls" if message.tool_calls else "stop"),
                span=NO_SPAN,
                weight_version=field_of(call, "model", str),
            )
            turns.append(turn)
            self._turn_of |= {index: at, message: at}
        for leaf in sorted(set(range(len(self.nodes))).difference(self._parents)):
            self._answer(turns, leaf)
        return turns

    def with_rows(self, turns: Sequence[Turn]) -> tuple[list[Turn], tuple[TokenRow, ...] | None]:
        if not all(self.nodes[index].get("token_ids") for index in self.sampled):
            return list(turns), None
        leaves = self._longest_branches()
        builders: dict[int, RowBuilder] = {}
        known: dict[int, int] = {}
        spanned: list[Turn] = []
        for turn, index in zip(turns, self.sampled, strict=True):
            leaf = leaves[index]
            fork = FORK if builders and leaf not in builders else None
            builder = builders.setdefault(leaf, RowBuilder(next(iter(builders.values()), None)))
            completion = self._completion(index, turn, known.get(leaf, 0))
            known[leaf] = self._threads[index][1]
            span, trained = builder.append(completion), bool(completion.token_ids)
            spanned.append(replace(turn, span=span, trained=trained, fork=fork))
        return spanned, next(iter(builders.values()), RowBuilder()).build()

    def _longest_branches(self) -> list[int]:
        """Return the leaf of each node's longest branch."""
        leaves = list(range(len(self.nodes)))
        for index, above in reversed([*enumerate(self._parents)]):
            if above >= 0:
                found = (leaves[above], leaves[index])
                leaves[above] = min(found, key=lambda leaf: (-self._threads[leaf][1], leaf))
        return leaves

    def _completion(self, index: int, turn: Turn, known: int) -> Completion:
        path = [index]
        while len(path) < self._threads[index][1] - known:
            path.append(self._parents[path[-1]])
        if not known:
            self._repeat(len(path))
        ids, *before = [
            read_ids(self.nodes[each].get("token_ids") or [], f"nodes[{each}].token_ids") for each in path
        ]
        mask = cast("list[bool]", field_of(self.nodes[index], "mask", list) or [])
        start = len(ids) - sum(mask)
        if start < 0 or mask != [False] * start + [True] * sum(mask):
            raise SessionError(f"nodes[{index}].mask is not false up to what was sampled, and then true")
        logprobs = field_of(self.nodes[index], "logprobs", list)
        return Completion(
            message=turn.message,
            finish_reason=turn.finish_reason,
            prompt_ids=(*(each for part in reversed(before) for each in part), *ids[:start]),
            extends_row=known > 0,
            token_ids=ids[start:],
            logprobs=read_logprobs(logprobs or (None if any(mask) else ()), sum(mask)),
            exact=True,
        )

    def _answer(self, turns: list[Turn], end: int) -> None:
        """Add the messages that follow a node's last turn, unless it has some."""
        last = self._assistants[end]
        if last < 0:
            return
        # A branch that repeats its history has the turn's message without tokens.
        (messages, count), (_, start) = self._threads[end], self._threads[last]
        at = self._turn_of.get(last, self._turn_of.get(messages[start - 1]))
        if at is not None and len(turns[at].messages) == 1:
            turns[at] = with_answers(turns[at], messages[start:count])

    def _message(self, index: int) -> Message:
        message = object_in(self.nodes[index], "message", where=f"nodes[{index}].")
        # The content may be null if the model stopped at once.
        (read,) = parse_entry({**message, "content": message.get("content") or ""}, f"nodes[{index}]", index)
        return read.message


def _rewards(trace: Mapping[str, Any], info: Mapping[str, Any], graph: _Graph, scale: Scale) -> Rewards:
    possible = "give numbers and null"
    turns = field_of(info, TURN_REWARDS, list)
    if turns is None:
        turns = [scale.vote(graph.nodes[index], f"nodes[{index}]") for index in graph.sampled]
    elif len(turns) != len(graph.sampled):
        raise SessionError(
            f"info.turn_rewards has {len(turns)} entries for {len(graph.sampled)} sampled nodes"
        )
    rewards = tuple(None if each is None else number(each, "info.turn_rewards", possible) for each in turns)
    has_turns = info.get(TURN_REWARDS) is not None or not set(rewards) <= {None}
    parts = {
        name: number(
            number(each["score"], f"rewards.{name}.score", possible)
            * number(each.get("weight", 1.0), f"rewards.{name}.weight", possible),
            f"rewards.{name}",
            possible,
        )
        for name, each in cast("dict[str, dict[str, Any] | None]", object_in(trace, "rewards")).items()
        # The sum of the turns' rewards is not an outcome.
        if each is not None and not (name == TURN_REWARDS and has_turns)
    }
    outcome = sum(parts.values()) if parts else None
    if (named := scale.outcome(trace)) is not None:
        outcome, parts = named, {}
    if not has_turns:
        return Rewards(outcome=outcome, score=outcome, outcome_components=parts)
    score = aggregate(rewards, outcome, "sum")
    return Rewards(turns=rewards, outcome=outcome, score=score, outcome_components=parts)
