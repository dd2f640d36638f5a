"""A judge: one question about a turn or a trajectory, its verdict read and checked."""

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Annotated, Any, TypeVar, overload

from pydantic import BaseModel, Field, PydanticUserError, ValidationError

from environments.second_models.asked_model import AskedModel, nobody
from environments.second_models.text_model import without_reasoning
from environments.trajectory import LARGEST_REWARD, Message, Turn, written_messages
from tools.errors import ConfigError, GroupRefused
from tools.json_input import EXACT_DECODER

VerdictT = TypeVar("VerdictT", bound=BaseModel)

_OBJECT = re.compile(r"""\{\s*(?:["}]|['“]\w+['”]\s*:)""")
"""How an object begins, one in other quotes included; `{the answer}` and LaTeX do not."""
_MOST_OBJECTS = 100


class ScoreVerdict(BaseModel):
    """What is read where the author gives no schema of their own."""

    score: Annotated[float, Field(strict=True, ge=-LARGEST_REWARD, le=LARGEST_REWARD)]


class UnreadableError(ValueError):
    """No verdict can be read; the text has the reason, for the judge."""


def read_verdict(text: str, schema: type[VerdictT]) -> VerdictT:
    """The verdict in an answer, which may stand in a fence and have text around it.

    Text that looks like an object and is no JSON makes the whole answer unreadable: a judge that quotes
    `{"score": 1}` of what it judges, within a verdict that is broken, has not given that score.

    Raises:
        UnreadableError: it is missing, or several differ.
    """
    fitting: list[VerdictT] = []
    problem = "there is no JSON object in it"
    for number, found in enumerate(_objects(without_reasoning(text))):
        if number == _MOST_OBJECTS:
            raise UnreadableError(f"there are more than {_MOST_OBJECTS} objects in it")
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


def _objects(text: str) -> Iterator[dict[str, Any]]:
    """The outermost JSON objects of a text."""
    position = 0
    while (begins := _OBJECT.search(text, position)) is not None:
        try:
            found, position = EXACT_DECODER.raw_decode(text, begins.start())
        except (ValueError, RecursionError) as error:
            raise UnreadableError(f"there is an object in it that is no JSON ({_short(error)})") from None
        yield found


def _first_problem(error: ValidationError | OverflowError | RecursionError) -> str:
    if not isinstance(error, ValidationError):
        return f"a value in it is not possible ({_short(error)})"
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    where = ".".join(map(str, first["loc"]))
    return f"{where}: {first['msg']}"[:300] if where else first["msg"][:300]


def _short(error: Exception) -> str:
    return "nested too deep" if isinstance(error, RecursionError) else str(error)[:100]


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
        """Ask the judge, and read its verdict: a JSON object in its answer, other text around it or not.

        Equal questions are asked once in a run. An answer without a verdict is asked for again, twice, with
        a note of what was wrong and another seed.

        Args:
            prompt: the question, as text or messages; it has to state the answer's format.
            schema: what the verdict must fit; unset: it has a finite number named `score`.
            turn: the turn in question, for the record; unset: the whole trajectory.
            unparsable: given back where no verdict can be read; unset or `None`: the group is refused.

        Returns:
            The score, or an instance of the schema.

        Raises:
            GroupRefused: no verdict can be read, or the question does not fit the judge's context.
            SecondModelError: the judge cannot be reached, after its server's tries.
            NoModelError: there is no judge.
            ConfigError: the question, the schema or `unparsable` is invalid.
        """
        question = _question(prompt)
        _refuse_other_schemas(schema)
        _refuse_other_stand_ins(unparsable, schema)
        index = turn.index if isinstance(turn, Turn) else turn
        verdict, problem = await _verdict(self.judge_model, question, schema or ScoreVerdict, index)
        if verdict is None and unparsable is not None:
            return unparsable
        if verdict is None:
            raise GroupRefused(
                f"no verdict of the judge can be read: {problem}; what is to count then says "
                f"ctx.judge(…, unparsable=…)"
            )
        return verdict.score if isinstance(verdict, ScoreVerdict) and schema is None else verdict


async def _verdict(
    judge: AskedModel, question: tuple[Message, ...], schema: type[SchemaT], turn: int | None
) -> tuple[SchemaT | None, str]:
    """The verdict, or `None` and what was wrong last."""
    asked, problem, begins = question, "", ""
    for seed in range(TRIES):
        answer = await judge.ask(asked, turn=turn, seed=seed)
        if answer.text is None:
            return None, _NO_ANSWER.get(answer.problem or "", "it takes no such question")
        try:
            return read_verdict(answer.text, schema), ""
        except UnreadableError as error:
            problem = f"it was cut; {error}" if answer.problem == "cut" else str(error)
        asked, begins = (*question, *_again(answer.text, problem, schema)), answer.text[:_SHOWN_CHARS]
    return None, f"{problem}, {TRIES} times, the last time in {begins!r}"


def _question(prompt: Any) -> tuple[Message, ...]:
    """The messages of a prompt."""
    if isinstance(prompt, str):
        messages = (Message(role="user", content=prompt),)
    else:
        messages = written_messages(prompt, "ctx.judge: the prompt")
    wrong = next((message.role for message in messages if message.role not in _ROLES), None)
    if wrong is not None or not messages or messages[-1].role != "user":
        raise ConfigError(
            f"ctx.judge takes text, or messages of role {', '.join(_ROLES)} of which the last is a user's; "
            f"got {wrong or 'another last one'!r}"
        )
    return tuple(Message(role=each.role, content=each.content) for each in messages)


def _refuse_other_schemas(schema: Any) -> None:
    if schema is not None and not (isinstance(schema, type) and issubclass(schema, BaseModel)):
        raise ConfigError(f"ctx.judge: schema is {schema!r:.100}; give a subclass of pydantic's BaseModel")


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
    """The judge's answer, and the note that asks for another one."""
    shape = '{"score": a number}' if schema is ScoreVerdict else _written(schema)
    note = f"That answer cannot be read: {problem}. Answer again, with one JSON object alone: {shape}"
    return (
        Message(role="assistant", content=answer[:_QUOTED_CHARS] or "(nothing)"),
        Message(role="user", content=note),
    )


def _written(schema: type[BaseModel]) -> str:
    try:
        fits = json.dumps(schema.model_json_schema(), ensure_ascii=False)
    except PydanticUserError:  # a field of a type that JSON schemas do not know
        return "as it was asked for"
    return f"one that fits the JSON schema {fits}"


def quoted(text: str, name: str = "answer") -> str:
    """A text between two marks that name it and hold a hash of it, so that no text can close its own.

    Equal texts give equal quotes, which a judge is asked about once. It keeps apart what is judged and what
    is said about it; no mark keeps a judge from being talked over.
    """
    mark = f"{name} {blake2b(text.encode('utf-8', 'surrogatepass'), digest_size=8).hexdigest()}"
    return f"<<<{mark}\n{text}\n{mark}>>>"
