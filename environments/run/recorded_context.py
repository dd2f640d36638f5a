"""A rollout as a record has it, for its reward hooks: what only a live one has is refused, and remembered."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from environments.reward_context import RolloutContext
from environments.second_models.asked_model import SCRIPTED, AskedModel, ScriptedAnswers
from environments.second_models.text_answer import TextAnswer
from environments.trajectory import JudgeCall, Message
from tools.errors import ConfigError

_LIVE = frozenset({"sandbox", "fresh_sandbox", "state", "verify"})


class LiveAccess:
    """What the hooks asked for that a record does not have; an environment that asks cannot be rescored."""

    def __init__(self, env: str) -> None:
        """Nothing yet."""
        self._env = env
        self.refusal: str | None = None
        """Why, for people."""

    def refuse(self, hook: str, what: str) -> NoReturn:
        """Raise ConfigError, and remember the first: whoever asks may catch it."""
        reason = f"environment {self._env!r} cannot be rescored: {hook} {what}"
        self.refusal = self.refusal or reason
        raise ConfigError(reason)

    def check(self) -> None:
        """Raise ConfigError when anything was refused."""
        if self.refusal is not None:
            raise ConfigError(self.refusal)


@dataclass(slots=True, kw_only=True, repr=False, eq=False)
class RecordedContext(RolloutContext):
    """Its `sandbox`, `state` and `verify` are not there."""

    refuse: Callable[[str], NoReturn]
    """Takes what a hook does that cannot be done, in words."""

    def __getattribute__(self, name: str) -> Any:
        """What is there."""
        if name in _LIVE:
            name = name.replace("fresh_sandbox", "verify")
            object.__getattribute__(self, "refuse")(
                f"uses ctx.{name}, which a rollout has and its record has not"
            )
        return object.__getattribute__(self, name)

    def __repr__(self) -> str:
        """Not every field: some are not there."""
        return f"RecordedContext(env={self.env!r}, item_id={self.item_id!r}, seed={self.seed})"


@dataclass(frozen=True, slots=True, kw_only=True)
class NoJudge:
    """In the place of a judge that no server is named for: what the record does not hold is refused."""

    refuse: Callable[[str], NoReturn]
    """As for `RecordedContext`."""
    model: str = ""

    def sampling(self, seed: int) -> Mapping[str, Any]:
        """Nothing."""
        return {}

    async def answer(self, messages: Sequence[Message], *, seed: int) -> TextAnswer:
        """Refuse."""
        self.refuse("asks the judge what its record does not hold; name its server, --judge.base_url")


def recorded_judge(
    judge: AskedModel, calls: Sequence[JudgeCall], refuse: Callable[[str], NoReturn], *, has_script: bool
) -> AskedModel:
    """The judge, which answers from a record what it was asked then; a script stands in for no real one."""
    was_real = any(call.model != SCRIPTED for call in calls)
    if isinstance(judge.model, ScriptedAnswers) and (was_real or not has_script):
        judge.model = NoJudge(refuse=refuse)
    judge.recorded = {call.messages: call for call in calls}
    return judge
