"""A judge: ask a model about a turn or a trajectory, then read and check its verdict."""

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
    SecondModel,
    no_model,
    question_id,
    request_id,
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
    score: Annotated[float, Field(strict=True, ge=-LARGEST_REWARD, le=LARGEST_REWARD)]


class UnreadableError(ValueError):
    """The answer has no readable verdict."""


def read_verdict(text: str, schema: type[VerdictT], wanted: str) -> VerdictT:
    """Return the verdict in an answer: the JSON object with the question's id.

    Beside an object with text there may be no other brace: a judge that quotes `"} {"score": 1, "x": "`
    unescaped ends its object there, and the id is in the second one.
    """
    answer = without_reasoning(text)
    fitting: list[VerdictT] = []
    problem = f'there is no valid JSON object with "id": "{wanted}" in it'
    for begin, end, found in _find_objects(answer, wanted):
        if any(isinstance(value, str | list | dict) for value in found.values()) and (
            _BRACES.search(answer, 0, begin) or _BRACES.search(answer, end)
        ):
            raise UnreadableError("there are braces outside of its object")
        try:
            verdict = schema.model_validate(found)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False, include_context=False)[0]
            where = ".".join(map(str, first["loc"]))
            problem = f"{where}: {first['msg']}"[:300] if where else first["msg"][:300]
            continue
        except (OverflowError, RecursionError) as error:
            reason = "nested too deep" if isinstance(error, RecursionError) else str(error)[:100]
            problem = f"a value in it is not possible ({reason})"
            continue
        if verdict not in fitting:
            fitting.append(verdict)
    if len(fitting) > 1:
        raise UnreadableError("there are several verdicts in it, and they differ")
    if not fitting:
        raise UnreadableError(problem)
    return fitting[0]


def _find_objects(text: str, wanted: str) -> Iterator[tuple[int, int, dict[str, Any]]]:
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
    """The part of rollout and group contexts that asks the judge."""

    judge_model: SecondModel = field(default_factory=no_model, repr=False)

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
        """Ask the judge, and return its verdict: the JSON object in its answer with the question's id.

        The id is a hash of the question; a line after the prompt requests it. Equal questions are sent once
        per run. After an answer without a verdict the judge gets up to two more tries, each with a note of
        the problem and another seed.

        Args:
            prompt: The question, as text or messages; it has to state the answer's format.
            schema: The model of the verdict, without a field `id`; by default a finite number `score`.
            turn: The turn in question, for the record; by default the whole trajectory.
            unparsable: The result if no verdict can be read; by default the rollout gets the floor.

        Returns:
            The score, or an instance of the schema.

        Raises:
            AgentCausedError: if no verdict can be read, or the question does not fit the judge's context.
            SecondModelError: if the judge cannot be reached after retries, or gave no verdict in three
                groups.
            NoModelError: if there is no judge.
            ConfigError: if the question, the schema or `unparsable` is invalid.
        """
        question = _question(prompt)
        if schema is not None and not (isinstance(schema, type) and issubclass(schema, BaseModel)):  # pyright: ignore[reportUnnecessaryIsInstance]  # user code
            raise ConfigError(
                f"ctx.judge: schema is {schema!r:.100}; give a subclass of pydantic's BaseModel"
            )
        fields = {} if schema is None else schema.model_fields
        if schema is not None and any("id" in (name, each.alias) for name, each in fields.items()):
            raise ConfigError(
                f"ctx.judge: {schema.__name__} has a field `id`, which is reserved for the id of the "
                "question; rename it"
            )
        _check_stand_in(unparsable, schema)
        index = turn.index if isinstance(turn, Turn) else turn
        verdict, problem = await _ask(self.judge_model, question, schema or ScoreVerdict, index)
        if verdict is None and unparsable is not None:
            return unparsable
        if verdict is None:
            raise AgentCausedError(
                f"no verdict of the judge can be read: {problem}; ctx.judge(…, unparsable=…) sets a result "
                f"for this case",
                cause="unusable_answer",
            )
        return verdict.score if isinstance(verdict, ScoreVerdict) and schema is None else verdict


async def _ask(
    judge: SecondModel, question: tuple[Message, ...], schema: type[SchemaT], turn: int | None
) -> tuple[SchemaT | None, str]:
    wanted = question_id(question)
    first = asked = request_id(question, wanted)
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
        asked = (*first, *request_id(_retry_messages(answer.text, problem, schema), wanted))
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


def _check_stand_in(unparsable: Any, schema: type[BaseModel] | None) -> None:
    # Checked at each call, so that an author need not wait for an unreadable verdict to see the error.
    if unparsable is None or (schema is not None and isinstance(unparsable, schema)):
        return
    try:
        is_number = schema is None and math.isfinite(unparsable)
    except (TypeError, OverflowError):
        is_number = False
    if not is_number:
        wanted = "a finite number" if schema is None else f"an instance of {schema.__name__}"
        raise ConfigError(f"ctx.judge: unparsable is {unparsable!r:.100}; give {wanted}, or leave it out")


def _retry_messages(answer: str, problem: str, schema: type[BaseModel]) -> tuple[Message, Message]:
    shape = '{"score": a number}'
    if schema is not ScoreVerdict:
        shape = "as it was asked for"
        with suppress(PydanticUserError):  # some field types have no JSON schema
            fits = json.dumps(schema.model_json_schema(), ensure_ascii=False)
            shape = f"one that fits the JSON schema {fits}"
    note = f"That answer cannot be read: {problem}. Answer again, with one JSON object alone: {shape}"
    return (
        Message(role="assistant", content=answer[:_QUOTED_CHARS] or "(nothing)"),
        Message(role="user", content=note),
    )


def quoted(text: str, name: str = "answer") -> str:
    """Return a text between two marks with its name and hash, so that no text can close its quote.

    Equal texts give equal quotes, so an equal question is sent once. No mark keeps a judge from believing
    what the text claims.
    """
    mark = f"{name} {blake2b(text.encode('utf-8', 'surrogatepass'), digest_size=8).hexdigest()}"
    return f"<<<{mark}\n{text}\n{mark}>>>"
