"""The log-probabilities of a given text, over HTTP and in a rollout."""

import math
from contextlib import asynccontextmanager
from itertools import pairwise

import pytest
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

from environments.base_env import AgentEnv
from environments.config import AgentEnvConfig, ReferenceConfig, ServerConfig
from environments.policy.base import CompletionRequest
from environments.policy.inference.token_wires import WIRES
from environments.policy.mock_server import MockSettings, mock_app
from environments.policy.rendering.chatml import EMBEDDED_TOKENIZER_DIR
from environments.policy.scripted import Choice, ScriptedPolicy, mostly, say
from environments.trajectory import TextScore
from environments.turn_level_reward import TurnLevelRewardMixin
from tests.environments.policy.token_server import (
    ALL_WIRES,
    RENDERER,
    SYSTEM,
    TERMINAL,
    USER,
    served,
    token_policy,
)
from tests.equipment.running_server import running_server
from tools.errors import ConfigError, ContextOverflow, PolicyError

REQUEST = CompletionRequest(messages=(SYSTEM, USER), tools=(TERMINAL,))
SCORING = [wire for wire in ALL_WIRES if WIRES[wire].scoring]
VLLM, SGLANG = WIRES["vllm", "completions"], WIRES["sglang", "generate"]
scoring_wires = pytest.mark.parametrize("wire", SCORING, ids="-".join)


def script(messages, tools, skill):
    return [
        Choice(probability=0.5, message=say("Paris, of course.")),
        Choice(probability=0.2, message=say("Paris or Rome.")),
        Choice(probability=0.3, message=say("Lyon.")),
    ]


@scoring_wires
async def test_a_text_has_over_http_the_log_probabilities_that_it_has_in_the_process(wire):
    local = ScriptedPolicy(script, skill=0.6, renderer=RENDERER)
    async with served(wire, script) as remote:
        for text in ("Paris", "Paris, of", "Lyon."):
            there, here = [await policy.score(REQUEST, text) for policy in (remote, local)]
            assert there.logprobs == here.logprobs
            assert there.tokens == len(RENDERER.text_ids(text))
        assert there.total == pytest.approx(math.log(0.3))


@scoring_wires
async def test_a_score_names_the_weights(wire):
    async with served(
        wire, script, policy={"extra_body": {"return_weight_versions": True, "top_k": 5}}
    ) as remote:
        assert (await remote.score(REQUEST, "Lyon.")).weight_version == "default"


@scoring_wires
async def test_a_text_that_the_server_gives_no_probability_is_an_error_and_no_number(wire):
    async with served(wire, script) as remote:
        with pytest.raises(PolicyError, match=r"logprob -9999"):
            await remote.score(REQUEST, "Nice.")


@scoring_wires
async def test_a_text_beyond_the_window_is_an_overflow(wire):
    async with served(wire, script, policy={"context_tokens": 40}) as remote:
        with pytest.raises(ContextOverflow, match="prompt tokens leave no room in the 40"):
            await remote.score(REQUEST, "Lyon.")


async def test_a_server_that_scores_no_text_is_named_with_those_that_do():
    async with served(("sglang", "chat"), script) as remote:
        with pytest.raises(ConfigError, match=r"gives no log-probabilities of a given text; vLLM and SGLang"):
            await remote.score(REQUEST, "Lyon.")


@asynccontextmanager
async def server_of(wire, answer, *, tries=1):
    async def route(request):
        given = answer(await request.json())
        return JSONResponse(given or {}, status_code=200 if given else 503)

    path = f"/v1{wire.path}" if not wire.at_root else wire.path
    async with running_server(Starlette(routes=[Route(path, route, methods=["POST"])])) as base_url:
        policy = token_policy(base_url, next(name for name in WIRES if WIRES[name] is wire))
        policy.server.tries = tries
        yield policy
        await policy.aclose()


def completions(ids, prompt_logprobs):
    choice = {"finish_reason": "length", "token_ids": [1], "logprobs": {"token_logprobs": [-1.0]}}
    choice["prompt_logprobs"] = prompt_logprobs
    return {"choices": [choice], "usage": {"prompt_tokens": len(ids)}}


def generated(ids, pairs):
    meta = {"output_token_logprobs": [[-1.0, 1, None]], "finish_reason": {"type": "length"}}
    return {
        "output_ids": [1],
        "meta_info": {**meta, "prompt_tokens": len(ids), "input_token_logprobs": pairs},
    }


@pytest.mark.parametrize(
    ("wire", "answer", "message"),
    [
        (VLLM, lambda body: completions(body["prompt"], None), r"gave 0 logprobs for \d token ids"),
        (VLLM, lambda body: completions(body["prompt"], [{"9": {"logprob": -1}}] * 90), "the logprob None"),
        (SGLANG, lambda body: generated(body["input_ids"], None), r"gave 0 logprobs for \d token ids"),
        (SGLANG, lambda body: generated(body["input_ids"], [[-1, 9, None]] * 90), "is of 9, the token is"),
    ],
)
async def test_a_server_without_scores_or_with_those_of_other_ids_is_an_error(wire, answer, message):
    async with server_of(wire, answer) as policy:
        with pytest.raises(PolicyError, match=message):
            await policy.score(REQUEST, "Lyon.")


@pytest.mark.parametrize("tries", [1, 2])
async def test_a_server_that_gives_no_answer_is_asked_again_and_then_it_is_an_error(tries):
    asked = []

    def answer(body):
        asked.append(body)
        ids = body["prompt"]
        return None if len(asked) == 1 else completions(ids, [{str(i): {"logprob": -0.5}} for i in ids])

    async with server_of(VLLM, answer, tries=tries) as policy:
        if tries == 1:
            with pytest.raises(PolicyError, match="answered 503"):
                await policy.score(REQUEST, "Lyon.")
        else:
            assert set((await policy.score(REQUEST, "Lyon.")).logprobs) == {-0.5}
    assert [each["prompt_logprobs"] for each in asked] == [0] * tries


class Guessing(TurnLevelRewardMixin, AgentEnv):
    """A turn is worth what it adds to the log-probability of the answer (information gain)."""

    name = "guessing"
    sandbox = "none"
    texts = ("Paris",)

    def load_items(self):
        return [{"question": "What is the capital of France?", "answer": "Paris"}]

    def format_prompt(self, item):
        return item["question"]

    def respond(self, item, turn, ctx):
        return "Think again."

    async def score_turn(self, item, turn, ctx):
        after = (await ctx.policy_logprob(item["answer"])).total
        before = ctx.notes.get("before")
        if before is None:
            before = (await ctx.policy_logprob(item["answer"], ctx.messages[:1])).total
        ctx.notes["before"] = after
        return after - before

    def scripted_choices(self, item, messages, tools, skill):
        return mostly(len(messages) / 10, [say("Paris")], [say("Rome")])


async def run(env_class=Guessing, **settings):
    settings = {"group_size": 2, "max_turns": 3, **settings}
    async with env_class(AgentEnvConfig(**settings)) as env:
        return await env.run_group(env.tasks()[0])


async def test_a_rollouts_scores_are_of_its_conversation_so_far_and_are_kept_for_its_record():
    group = (await run()).group
    for trajectory in group.trajectories:
        probabilities = [0.1, 0.3, 0.5, 0.7]  # after 1, 3, 5 and 7 messages
        gains = [math.log(after / before) for before, after in pairwise(probabilities)]
        assert trajectory.rewards.turns == pytest.approx(gains)
        kept = [(each.text, round(math.exp(each.total), 6)) for each in trajectory.text_scores]
        assert kept == [("Paris", each) for each in (0.3, 0.1, 0.5, 0.7)]
        assert {each.hook for each in trajectory.text_scores} == {"score_turn"}


async def test_a_context_of_the_hooks_own_is_scored_instead():
    class Asked(Guessing):
        async def score_turn(self, item, turn, ctx):
            question = {"role": "user", "content": "The answer?"}
            return (await ctx.policy_logprob("Paris", [*ctx.messages, question])).total

    group = (await run(Asked, max_turns=1)).group
    assert group.trajectories[0].rewards.turns == pytest.approx([math.log(0.4)])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "takes a text, got ''"),
        (7, "takes a text, got 7"),
        ("Nice", "never begins a message with 'Nice'"),
    ],
)
async def test_what_cannot_be_scored_drops_the_rollout_and_is_no_number(text, message):
    class Wrong(Guessing):
        async def score_turn(self, item, turn, ctx):
            return (await ctx.policy_logprob(text)).total

    group = (await run(Wrong)).group
    assert group.trajectories == ()
    assert all(message in each.error for each in group.failures)


async def test_a_replayed_turn_has_the_scores_of_its_trunk_although_the_weights_changed_since():
    class Trained(ScriptedPolicy):
        scored = 0

        async def score(self, request, text):
            self.scored += 1
            return TextScore(logprobs=(-float(self.scored),))

    policy = Trained(script, skill=0.6, renderer=RENDERER)
    settings = {"group_size": 4, "branches": 2, "branch_at": 3, "max_turns": 3}
    async with Guessing(AgentEnvConfig(**settings), policy=policy) as env:
        group = (await env.run_group(env.tasks()[0])).group

    assert group.failures == ()
    for trunk, branch in ([group.trajectories[at] for at in family] for family in group.families):
        assert branch.text_scores[:3] == trunk.text_scores[:3]
        assert branch.rewards.turns[:2] == trunk.rewards.turns[:2]
    assert policy.scored <= 2 * 4 + 2


async def test_a_policy_without_scores_is_named():
    class Mute:
        name = "mute"

        def __init__(self):
            self.complete = ScriptedPolicy(script, skill=1.0, renderer=RENDERER).complete

    async with Guessing(AgentEnvConfig(group_size=2, max_turns=1), policy=Mute()) as env:
        group = (await env.run_group(env.tasks()[0])).group
    assert "the policy mute gives no log-probabilities of a given text" in group.failures[0].error


async def test_nothing_is_scored_before_the_first_turn():
    class Early(Guessing):
        async def format_prompt(self, item, ctx):
            await ctx.policy_logprob("Paris", "Well?")

    failures = (await run(Early)).group.failures
    assert "works from the rollout's first turn on" in failures[0].error


async def test_a_reference_model_scores_on_its_own_server():
    class Compared(Guessing):
        async def score_turn(self, item, turn, ctx):
            scores = [await ctx.policy_logprob("Paris", by=by) for by in ("policy", "reference")]
            return {"policy": scores[0].total, "reference": scores[1].total}

    def other(messages, tools, skill):
        return mostly(0.25, [say("Paris")], [say("Rome")])

    def app(played):
        return mock_app(
            lambda _: played, skill=0.6, renderer=RENDERER, settings=MockSettings(kind="vllm", model="m")
        )

    async with running_server(app(script)) as policy, running_server(app(other)) as reference:
        servers = [
            ServerConfig(base_url=policy, model_name="m", family="chatml"),
            ReferenceConfig(base_url=reference, model_name="m"),
        ]
        config = AgentEnvConfig(group_size=2, max_turns=1, tokenizer_name=str(EMBEDDED_TOKENIZER_DIR))
        async with Compared(config, servers) as env:
            group = (await env.run_group(env.tasks()[0])).group
    (parts,) = group.trajectories[0].rewards.turn_components
    assert parts == pytest.approx({"policy": math.log(0.7), "reference": math.log(0.25)})
    assert [each.model for each in group.trajectories[0].text_scores] == ["policy", "reference"]


async def test_without_a_reference_model_the_setting_is_named():
    class Lacking(Guessing):
        async def score_turn(self, item, turn, ctx):
            return (await ctx.policy_logprob("Paris", by="reference")).total

    failures = (await run(Lacking)).group.failures
    assert "name its server, --reference.base_url" in failures[0].error
