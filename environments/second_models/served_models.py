"""The second models of an environment: their servers, or the hooks that play them offline."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from environments.second_models.answer_cache import AnswerCache
from environments.second_models.asked_model import AskedModel, ScriptedAnswers
from environments.second_models.text_answer import Answering
from tools.errors import ConfigError

if TYPE_CHECKING:
    from environments.second_models.text_model import TextModel

CallScript = Callable[..., Awaitable[Any]]
"""Calls a hook within its limits: (what it is for people, hook, item, messages)."""


class SecondModels:
    """One of each role; who judges is asked nothing twice, who plays a user may answer anew."""

    def __init__(self, served: "Mapping[str, TextModel]") -> None:
        """Those that have a server, by their role."""
        self._served = dict(served)
        self._answering: dict[str, Answering] = dict(served)
        if "judge" in served:
            self._answering["judge"] = AnswerCache(asked=served["judge"])

    @property
    def roles(self) -> Sequence[str]:
        """Those that have a server."""
        return tuple(self._served)

    def asked(
        self, role: str, script: Callable[..., Any], item: Any, call: CallScript, hook: Callable[[], str]
    ) -> AskedModel:
        """A model as one rollout asks it.

        Args:
            role: one of `ROLES`.
            script: the hook that plays it where it has no server.
            item: of the rollout.
            call: calls the hook.
            hook: which hook of the rollout runs now.
        """
        answering = self._answering.get(role)
        if answering is None:

            async def played(messages: Sequence[Any]) -> Any:
                return await call(f"{_asking(hook())}: scripted_{role}", script, item, messages)

            answering = ScriptedAnswers(name=f"scripted_{role}", script=played)
        return AskedModel(model=answering, role=role, hook=lambda: _asking(hook()))

    async def check(self) -> None:
        """Raise ConfigError while one of the servers cannot be used; buys no completion."""
        for role, model in self._served.items():
            try:
                await model.check()
            except ConfigError as error:
                raise ConfigError(f"the {role}'s model server: {error}") from error

    async def aclose(self) -> None:
        """Close the connections."""
        for model in self._served.values():
            await model.aclose()


def _asking(doing: str) -> str:
    """The hook that asks, also while its question is being answered."""
    return doing.partition(":")[0]
