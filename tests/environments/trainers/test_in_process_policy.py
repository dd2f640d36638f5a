"""The policy that samples in a trainer's process: requests in batches, with whatever weights it was given."""

import asyncio
import math
import threading

import pytest

from environments.policy.base import CompletionRequest
from environments.policy.rendering.chatml import ChatMLRenderer
from environments.policy.scripted import call
from environments.trainers.in_process_policy import Batches, InProcessPolicy, Sampled
from environments.trajectory import Message, TextScore
from tests.environments.write_file import WriteFile
from tools.errors import ConfigError, PolicyError

RENDERER = ChatMLRenderer.embedded()
SAID = RENDERER.completion_ids(Message(role="assistant", content="yes"))


def request(**fields):
    return CompletionRequest(messages=(Message(role="user", content="Well?"),), **fields)


def sampler(ids=SAID, batches=None):
    """Samples these ids, and notes how many prompts came at once."""

    def sample(batch):
        if batches is not None:
            batches.append(len(batch))
        kept = [tuple(ids[: wanted.max_tokens]) for wanted in batch]
        return [Sampled(token_ids=each, logprobs=tuple(-0.5 for _ in each)) for each in kept]

    return sample


def policy_with(sample, **fields):
    policy = InProcessPolicy(RENDERER, name="tiny")
    policy.use(Batches(sample), weight_version="step-3", **fields)
    return policy


async def test_a_turn_is_read_from_what_was_sampled():
    given = await policy_with(sampler()).complete(request())
    assert (given.message.content, given.finish_reason, given.exact) == ("yes", "stop", True)
    assert (given.token_ids, given.weight_version) == (SAID, "step-3")
    assert given.prompt_ids == RENDERER.prompt_ids(request().messages, ())


async def test_a_turn_without_a_stop_token_was_cut():
    given = await policy_with(sampler()).complete(request(max_tokens=len(SAID) - 1))
    assert given.finish_reason == "length"


async def test_what_is_asked_while_a_batch_is_sampled_waits_for_the_next():
    sampling, asked = asyncio.Event(), threading.Event()
    batches, loop = [], asyncio.get_running_loop()

    def sample(batch):
        loop.call_soon_threadsafe(sampling.set)
        asked.wait(30)
        return sampler(batches=batches)(batch)

    policy = policy_with(sample)
    first = asyncio.create_task(policy.complete(request()))
    await sampling.wait()
    others = [asyncio.create_task(policy.complete(request(seed=seed))) for seed in (1, 2)]
    await asyncio.sleep(0)
    asked.set()
    await asyncio.gather(first, *others)
    assert batches == [1, 2]


async def test_a_model_that_breaks_costs_its_batch_and_no_later_one():
    def broken(batch):
        raise MemoryError("no room")

    policy = policy_with(broken)
    with pytest.raises(PolicyError, match="sampling broke: MemoryError: no room"):
        await policy.complete(request())
    policy.use(Batches(sampler()), weight_version="step-4")
    assert (await policy.complete(request())).weight_version == "step-4"


async def test_without_weights_nothing_is_sampled():
    with pytest.raises(PolicyError, match="no weights yet"):
        await InProcessPolicy(RENDERER, name="tiny").complete(request())


async def test_the_models_window_ends_a_turn():
    room = len(RENDERER.prompt_ids(request().messages, ())) + 1
    given = await policy_with(sampler(), context_tokens=room).complete(request())
    assert (len(given.token_ids), given.finish_reason) == (1, "length")


async def test_rows_go_on_from_what_was_sampled():
    ids = RENDERER.completion_ids(call("terminal", {"command": "true"}))
    config = WriteFile.env_config_cls(group_size=2, max_turns=2, sandbox="local")
    async with WriteFile(config, policy=policy_with(sampler(ids))) as env:
        group = await env.run_group(env.tasks()[0])
    (row,) = group.group.trajectories[0].rows
    assert [turn.message.tool_calls[0].name for turn in group.group.trajectories[0].turns] == ["terminal"] * 2
    sampled = [value for value in row.logprobs if math.isclose(value, -0.5)]
    assert len(sampled) == 2 * len(ids)


async def test_a_text_is_scored_as_ids_that_are_forced():
    def sample(batch):
        forced = [tuple(wanted.forced_ids) for wanted in batch]
        return [Sampled(token_ids=each, logprobs=tuple(-0.5 for _ in each)) for each in forced]

    score = await policy_with(sample, scores=True).score(request(), "yes")
    assert score == TextScore(logprobs=(-0.5,) * len(RENDERER.text_ids("yes")), weight_version="step-3")
    with pytest.raises(PolicyError, match="other ids were sampled"):
        await policy_with(sampler(), scores=True).score(request(), "no")
    with pytest.raises(ConfigError, match="what samples for the policy tiny gives no log-probabilities"):
        await policy_with(sampler()).score(request(), "yes")
