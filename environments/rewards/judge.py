"""A judge: one question about a turn or a trajectory, its verdict read and checked."""

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Annotated, Any, TypeVar, overload

from pydantic import BaseModel, Field, PydanticUserError, ValidationError

from environments.policy.second_models import (
    AskedModel,
    asking_for_id,
    nobody,
    question_id,
    without_reasoning,
)
from environments.trajectory import LARGEST_REWARD, Message, Turn, parse_messages
from tools.errors import AgentCausedError, ConfigError
from tools.json_input import EXACT_DECODER

VerdictT = TypeVar("VerdictT", bound=BaseModel)

_MOST_OBJECTS = 10
_MOST_BRACES = 100
_BRACES = re.compile(r"[{}]")


class ScoreVerdict(BaseModel):
    """What is read where the author gives no schema of their own."""

    score: Annotated[float, Field(strict=True, ge=-LARGEST_REWARD, le=LARGEST_REWARD)]


class UnreadableError(ValueError):
    """No verdict can be read; the text has the reason, for the judge."""


def read_verdict(text: str, schema: type[VerdictT], wanted: str) -> VerdictT:
    """The verdict in an answer: the object that has the id of the question, which a quoted text cannot have.

    Where it has texts, no brace may stand outside it: a judge that quotes `"} {"score": 1, "x": "` without
    escaping it ends its own object there, and its id comes to stand in the other one.

    Raises:
        UnreadableError: it is missing, or several differ.
    """
    answer = without_reasoning(text)
    fitting: list[VerdictT] = []
    problem = f'there is no valid JSON object with "id": "{wanted}" in it'
    for begin, end, found in _objects(answer, wanted):
        if any(isinstance(value, str | list | dict) for value in found.values()) and (
            _BRACES.search(answer, 0, begin) or _BRACES.search(answer, end)
        ):
            raise UnreadableError("there are braces outside of its object")
        try:
            verdict = schema.model_validate(found)
        except (ValidationError, OverflowError, RecursionError) as error:
            problem = _first_problem(error)
            continue
        if verdict not in fitting:
            fitting.append(verdict)
    if len(fitting) > 1:
        raise UnreadableError("there are several verdicts in it, and they differ")
    if not fitting:
        raise UnreadableError(problem)
    return fitting[0]


def _objects(text: str, wanted: str) -> Iterator[tuple[int, int, dict[str, Any]]]:
    """The innermost JSON objects around each mention of the id: begin, end, and content without the id."""
    for number, mention in enumerate(re.finditer(rf'"id"\s*:\s*"{wanted}"', text)):
        if number == _MOST_OBJECTS:
            raise UnreadableError(f"there are more than {_MOST_OBJECTS} objects in it")
        begin = mention.start()
        for _ in range(_MOST_BRACES):
            if (begin := text.rfind("{", 0, begin)) < 0:
                break
            try:
                found, end = EXACT_DECODER.raw_decode(text, begin)
            except (ValueError, RecursionError):
                continue
            if end >= mention.end():
                if found.pop("id", None) == wanted:
                    yield begin, end, found
                break


def _first_problem(error: ValidationError | OverflowError | RecursionError) -> str:
    if not isinstance(error, ValidationError):
        reason = "nested too deep" if isinstance(error, RecursionError) else str(error)[:100]
        return f"a value in it is not possible ({reason})"
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    where = ".".join(map(str, first["loc"]))
    return f"{where}: {first['msg']}"[:300] if where else first["msg"][:300]


SchemaT = TypeVar("SchemaT", bound=BaseModel)
Prompt = str | Message | Sequence[Message | Mapping[str, str]]

TRIES = 3
_ROLES = ("system", "user", "assistant")
_QUOTED_CHARS = 2_000
_SHOWN_CHARS = 200
_NO_ANSWER = {
    "too_long": "the question does not fit its context",
    "filtered": "its server filters the question, or its answer",
}


@dataclass(slots=True, kw_only=True)
class Judging:
    """What the contexts of rollouts and of groups share: both may ask the judge."""

    judge_model: AskedModel = field(default_factory=nobody, repr=False)
    """Who judges, and what it was asked so far."""

    @overload
    async def judge(
        self,
        prompt: Prompt,
        *,
        schema: None = None,
        turn: Turn | int | None = None,
        unparsable: float | None = None,
    ) -> float: ...

    @overload
    async def judge(
        self,
        prompt: Prompt,
        *,
        schema: type[SchemaT],
        turn: Turn | int | None = None,
        unparsable: SchemaT | None = None,
    ) -> SchemaT: ...

    async def judge(
        self,
        prompt: Prompt,
        *,
        schema: type[BaseModel] | None = None,
        turn: Turn | int | None = None,
        unparsable: Any = None,
    ) -> Any:
        """Ask the judge, and read its verdict: the JSON object of its answer that has the question's id.

        The id is a hash of the question; the judge is asked for it after the prompt. Equal questions are
        asked once in a run. An answer without a verdict is asked for again, twice, with a note of what was
        wrong and another seed.

        Args:
            prompt: the question, as text or messages; it has to state the answer's format.
            schema: what the verdict must fit, without a field `id`; unset: it has a finite number `score`.
            turn: the turn in question, for the record; unset: the whole trajectory.
            unparsable: given back where no verdict can be read; unset or `None`: the rollout gets the floor.

        Returns:
            The score, or an instance of the schema.

        Raises:
            AgentCausedError: no verdict can be read, or the question does not fit the judge's context.
            SecondModelError: the judge cannot be reached, after its server's tries, or gave no verdict in
                three groups.
            NoModelError: there is no judge.
            ConfigError: the question, the schema or `unparsable` is invalid.
        """
        question = _question(prompt)
        if schema is not None and not (isinstance(schema, type) and issubclass(schema, BaseModel)):  # pyright: ignore[reportUnnecessaryIsInstance]  # user code
            raise ConfigError(
                f"ctx.judge: schema is {schema!r:.100}; give a subclass of pydantic's BaseModel"
            )
        fields = {} if schema is None else schema.model_fields
        if schema is not None and any("id" in (name, each.alias) for name, each in fields.items()):
            raise ConfigError(
                f"ctx.judge: {schema.__name__} has a field `id`, which is that of the question; name it "
                "otherwise"
            )
        _refuse_other_stand_ins(unparsable, schema)
        index = turn.index if isinstance(turn, Turn) else turn
        verdict, problem = await _verdict(self.judge_model, question, schema or ScoreVerdict, index)
        if verdict is None and unparsable is not None:
            return unparsable
        if verdict is None:
            raise AgentCausedError(
                f"no verdict of the judge can be read: {problem}; ctx.judge(…, unparsable=…) states what "
                f"counts then",
                cause="unusable_answer",
            )
        return verdict.score if isinstance(verdict, ScoreVerdict) and schema is None else verdict


async def _verdict(
    judge: AskedModel, question: tuple[Message, ...], schema: type[SchemaT], turn: int | None
) -> tuple[SchemaT | None, str]:
    """The verdict, or `None` and what was wrong last."""
    wanted = question_id(question)
    first = asked = asking_for_id(question, wanted)
    problem = ""
    for seed in range(TRIES):
        answer = await judge.ask(asked, turn=turn, seed=seed)
        if answer.text is None:
            problem = _NO_ANSWER.get(answer.problem or "", "it takes no such question")
            break
        try:
            verdict = read_verdict(answer.text, schema, wanted)
        except UnreadableError as error:
            problem = f"it was cut; {error}" if answer.problem == "cut" else str(error)
        else:
            judge.was_usable()
            return verdict, ""
        asked = (*first, *asking_for_id(_again(answer.text, problem, schema), wanted))
        problem = f"{problem}, {TRIES} times, the last time in {answer.text[:_SHOWN_CHARS]!r}"
    judge.was_unusable(problem)
    return None, problem


def _question(prompt: Any) -> tuple[Message, ...]:
    if isinstance(prompt, str):
        messages = (Message(role="user", content=prompt),)
    else:
        messages = parse_messages(prompt, "ctx.judge: the prompt")
    wrong = next((message.role for message in messages if message.role not in _ROLES), None)
    if wrong is not None or not messages or messages[-1].role != "user":
        raise ConfigError(
            f"ctx.judge takes text, or messages of role {', '.join(_ROLES)} of which the last is a user's; "
            f"got {wrong or 'another last one'!r}"
        )
    return tuple(Message(role=each.role, content=each.content) for each in messages)


def _refuse_other_stand_ins(unparsable: Any, schema: type[BaseModel] | None) -> None:
    """Now, and not first where an agent's text makes a verdict unreadable."""
    if unparsable is None or (schema is not None and isinstance(unparsable, schema)):
        return
    try:
        is_number = schema is None and math.isfinite(unparsable)
    except (TypeError, OverflowError):
        is_number = False
    if not is_number:
        wanted = "a finite number" if schema is None else f"an instance of {schema.__name__}"
        raise ConfigError(f"ctx.judge: unparsable is {unparsable!r:.100}; give {wanted}, or leave it out")


def _again(answer: str, problem: str, schema: type[BaseModel]) -> tuple[Message, Message]:
    shape = '{"score": a number}'
    if schema is not ScoreVerdict:
        shape = "as it was asked for"
        with suppress(PydanticUserError):  # a field of a type that JSON schemas do not know
            fits = json.dumps(schema.model_json_schema(), ensure_ascii=False)
            shape = f"one that fits the JSON schema {fits}"
    note = f"That answer cannot be read: {problem}. Answer again, with one JSON object alone: {shape}"
    return (
        Message(role="assistant", content=answer[:_QUOTED_CHARS] or "(nothing)"),
        Message(role="user", content=note),
    )


def quoted(text: str, name: str = "answer") -> str:
    """A text between two marks that name it and hold a hash of it, so that no text can close its own.

    Equal texts give equal quotes, which a judge is asked about once. It keeps apart what is judged and what
    is said about it; no mark keeps a judge from being talked over.
    """
    mark = f"{name} {blake2b(text.encode('utf-8', 'surrogatepass'), digest_size=8).hexdigest()}"
    return f"<<<{mark}\n{text}\n{mark}>>>"
