"""A policy that samples with what a trainer provides: its model, in batches, or its client."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from environments.policy.base import NO_SCORES, CannotEnforceError, CompletionRequest
from environments.policy.rendering.chatml import Renderer, run_parsing, run_rendering
from environments.policy.row_prompt import (
    Prompt,
    end_of_stop,
    name_calls,
    new_messages,
    render_prompt,
    with_token_limit,
)
from environments.trajectory import Completion, TextScore
from tools.errors import ConfigError, PolicyError


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    prompt_ids: Sequence[int]
    max_tokens: int
    draws: random.Random
    """Gives one number per token, so that a turn does not depend on its batch."""
    forced_ids: Sequence[int] = ()
    """The turn's ids, if only their log-probabilities are wanted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """The ids of a turn, its stop token included, each with its log-probability."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    weight_version: str | None = None


Sample = Callable[[Wanted], Awaitable[Sampled]]


class Batches:
    """Samples turns that siblings request at the same time in batches."""

    def __init__(
        self,
        sample: Callable[[Sequence[Wanted]], Sequence[Sampled]],
        *,
        size: int = 64,
        gather_s: float = 0.003,
    ) -> None:
        """`gather_s` is the time that a batch waits for further requests."""
        self._sample, self._size, self._gather_s = sample, size, gather_s
        self._waiting: list[tuple[Wanted, asyncio.Future[Sampled]]] = []
        self._worker: asyncio.Task[None] | None = None

    async def __call__(self, wanted: Wanted) -> Sampled:
        answer: asyncio.Future[Sampled] = asyncio.get_running_loop().create_future()
        self._waiting.append((wanted, answer))
        if self._worker is None or self._worker.done():
            self._worker = asyncio.create_task(self._work())
        return await answer

    async def _work(self) -> None:
        while self._waiting:
            await asyncio.sleep(self._gather_s)
            taken = self._waiting[: self._size]
            del self._waiting[: self._size]
            batch = [(wanted, answer) for wanted, answer in taken if not answer.done()]
            given: Sequence[Sampled | Exception] = ()
            try:
                if batch:
                    given = await asyncio.to_thread(self._sample, [wanted for wanted, _ in batch])
            except Exception as error:  # noqa: BLE001  # whatever a model raises costs these rollouts
                given = [error] * len(batch)
            for (_, answer), each in zip(batch, given, strict=True):
                if answer.done():
                    continue
                if isinstance(each, Sampled):
                    answer.set_result(each)
                else:
                    answer.set_exception(each)


class InProcessPolicy:
    """A policy that plays with the weights it was last given by `use`."""

    def __init__(self, renderer: Renderer, *, name: str) -> None:
        self._renderer = renderer
        self._sample: Sample | None = None
        self._weight_version: str | None = None
        self._scores = False
        self.name = name
        self.context_tokens: int | None = None

    @property
    def vocabulary_size(self) -> int:
        return self._renderer.vocabulary_size

    def use(
        self,
        sample: Sample,
        *,
        weight_version: str,
        context_tokens: int | None = None,
        scores: bool = False,
    ) -> None:
        """Sample from now on with these weights; `scores`: whether `sample` obeys `forced_ids`."""
        self._sample, self._weight_version, self._scores = sample, weight_version, scores
        self.context_tokens = context_tokens

    async def prompt_tokens(self, request: CompletionRequest) -> int:
        return len(_whole(await self._prompt(request), request))

    async def complete(self, request: CompletionRequest) -> Completion:
        """Sample the next assistant message, at temperature 1."""
        if request.constraint is not None:
            raise CannotEnforceError("a policy in this process enforces no constraints")
        prompt = await self._prompt(request)
        ids = _whole(prompt, request)
        fitted = with_token_limit(request, prompt_tokens=len(ids), context_tokens=self.context_tokens)
        draws = random.Random(f"{request.seed}:{request.number}")
        sampled = await self._run(Wanted(prompt_ids=ids, max_tokens=fitted.max_tokens, draws=draws))
        stop = end_of_stop(sampled.token_ids, request.stops, self._renderer.decode)
        end = len(sampled.token_ids) if stop is None else stop[0]
        token_ids = sampled.token_ids[:end]
        reading = partial(self._renderer.parse, token_ids, request.tools)
        is_cut = stop is None and token_ids[-1] not in self._renderer.stop_ids
        message = await run_parsing(reading, tokens=end)
        message = name_calls(message, request, is_cut=is_cut)
        return Completion(
            message=message,
            finish_reason="length" if is_cut else "tool_calls" if message.tool_calls else "stop",
            prompt_ids=prompt.prompt_ids,
            extends_row=prompt.extends_row,
            fork=prompt.fork,
            token_ids=token_ids,
            logprobs=sampled.logprobs[:end],
            exact=True,
            weight_version=sampled.weight_version,
            sampling={"temperature": 1.0},
        )

    async def score(self, request: CompletionRequest, text: str) -> TextScore:
        if not self._scores:
            raise ConfigError(f"what samples for the policy {self.name} {NO_SCORES}")
        ids, forced = _whole(await self._prompt(request), request), self._renderer.text_ids(text)
        with_token_limit(request, prompt_tokens=len(ids) + len(forced), context_tokens=self.context_tokens)
        draws = random.Random(request.seed)
        wanted = Wanted(prompt_ids=ids, max_tokens=len(forced), draws=draws, forced_ids=forced)
        sampled = await self._run(wanted)
        if (*sampled.token_ids,) != (*forced,):
            raise PolicyError(f"the text {text!r:.100} was to be scored, and other ids were sampled")
        return TextScore(logprobs=sampled.logprobs, weight_version=sampled.weight_version)

    async def _run(self, wanted: Wanted) -> Sampled:
        version = self._weight_version
        if self._sample is None:
            raise PolicyError("the policy has no weights yet; a trainer gives them, with `use`")
        try:
            sampled = await self._sample(wanted)
        except Exception as error:
            raise PolicyError(f"sampling broke: {type(error).__name__}: {error}") from error
        return replace(sampled, weight_version=sampled.weight_version or version)

    async def _prompt(self, request: CompletionRequest) -> Prompt:
        return await run_rendering(
            partial(render_prompt, request, self._renderer),
            self._renderer,
            new_messages(request),
            max_tokens=request.max_row_tokens,
        )


def _whole(prompt: Prompt, request: CompletionRequest) -> list[int]:
    before = request.row.token_ids if prompt.extends_row and request.row is not None else ()
    return [*before, *prompt.prompt_ids]
