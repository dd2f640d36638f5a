"""How rollouts of recorded agents end, what is scored when, and what a failure costs."""

import asyncio
import itertools
import json

import aiohttp
import openai
import pytest

from environments.policy.rendering.chatml import ChatMLRenderer
from environments.policy.scripted import ScriptedPolicy
from environments.record.group_line import encode_group
from environments.rollout.agents import endpoint
from tests.environments.rollout.agents.recorded import (
    Talk,
    ask,
    played,
    post,
    roll_out,
    rolled_out,
    system,
    user,
)
from tests.tables import cases
from tools.errors import PolicyError
from turnwise import AgentEnvConfig, ConfigError, StopReason
from turnwise.cli.main import main


async def for_ever(self, item, ctx):
    history = [user("x")]
    while True:
        status, answer, headers = await post(ctx.endpoint, {"messages": history})
        if status == 200:
            history += [answer["choices"][0]["message"], user("go on")]
        else:
            ctx.notes["refused"] = (status, answer["error"]["code"], headers["x-should-retry"])
            await asyncio.sleep(0.01)


def test_after_its_last_turn_an_agent_is_told_and_ended():
    refused = []

    class Told(Talk):
        def compute_outcome(self, item, trajectory, ctx):
            refused.append(ctx.notes["refused"])
            return 0.0

    (trajectory,) = rolled_out(played(Told, for_ever), max_turns=3)
    assert (len(trajectory.turns), trajectory.stop_reason) == (3, StopReason.MAX_TURNS)
    assert refused == [(400, "rollout_over", "false")]


def test_the_environment_ends_a_rollout_at_the_next_request():
    class Won(Talk):
        def score_turn(self, item, turn, ctx):
            if turn.index == 1:
                ctx.end("won")
            return 1.0

    (trajectory,) = rolled_out(played(Won, for_ever))
    assert (len(trajectory.turns), trajectory.stop_reason, trajectory.end_reason) == (2, "ended", "won")


@cases("how", ["raises", "exits", "hangs"])
def test_whatever_an_agent_does_after_a_turn_is_scored_as_an_agent_error(how):
    async def play(self, item, ctx):
        await ask(ctx.endpoint, user("x"))
        if how == "raises":
            raise ValueError("the agent's own")
        if how == "exits":
            raise SystemExit(3)
        await asyncio.Event().wait()

    (trajectory,) = rolled_out(played(Talk, play), rollout_timeout_s=3)
    assert trajectory.stop_reason is StopReason.AGENT_ERROR
    assert trajectory.score is not None
    assert {"raises": "the agent's own", "exits": "SystemExit", "hangs": "did not exit"}[
        how
    ] in trajectory.agent.error


def test_where_hooks_find_nothing_to_score_a_broken_agent_gets_the_floor():
    class Answered(Talk):
        def compute_outcome(self, item, trajectory, ctx):
            return float(ctx.notes["answer"])

    async def play(self, item, ctx):
        await ask(ctx.endpoint, user("x"))
        raise ValueError

    (trajectory,) = rolled_out(played(Answered, play))
    assert trajectory.agent_caused.cause == "agent_error"
    assert trajectory.rewards.outcome_components == {"failed": 0.0}


@cases("how", ["raises", "returns"])
async def test_without_a_completion_nothing_acted_and_the_sibling_fails(how):
    async def play(self, item, ctx):
        if how == "raises":
            raise ValueError("before any call")

    credited = await roll_out(played(Talk, play))
    (failure,) = credited.group.failures
    assert ("before any call" if how == "raises" else "no request reached the endpoint") in failure.error


async def test_a_policy_that_is_down_fails_the_sibling_and_one_that_comes_back_does_not():
    class Failing(ScriptedPolicy):
        left = 0

        async def complete(self, request):
            if self.left:
                self.left -= 1
                raise PolicyError("the server is away")
            return await super().complete(request)

    async def script(messages, tools, skill):
        return Talk.scripted_choices(None, None, messages, tools, skill)

    def policy(failures):
        made = Failing(script, skill=0.5, renderer=ChatMLRenderer.embedded())
        made.left = failures
        return made

    async def once(self, item, ctx):
        status, answer, _ = await post(ctx.endpoint, {"messages": [user("x")]})
        if status != 200:
            assert (status, answer["error"]["code"]) == (503, "policy_error")
            await ask(ctx.endpoint, user("x"))

    back = await roll_out(played(Talk, once), policy=policy(1))
    assert [len(each.turns) for each in back.group.trajectories] == [1]
    down = await roll_out(played(Talk, once), policy=policy(2))
    assert [failure.stop_reason for failure in down.group.failures] == [StopReason.POLICY_ERROR]


def test_a_prompt_without_room_is_refused_and_an_agent_that_forgets_goes_on():
    async def play(self, item, ctx):
        await ask(ctx.endpoint, user("x"))
        status, answer, _ = await post(ctx.endpoint, {"messages": [user("x " * 500)]})
        assert (status, answer["error"]["code"]) == (400, "context_length_exceeded")
        await ask(ctx.endpoint, user("shorter"))

    (trajectory,) = rolled_out(played(Talk, play), max_token_length=200, max_tokens_per_turn=50)
    assert (len(trajectory.turns), trajectory.stop_reason) == (2, StopReason.COMPLETED)


def test_one_that_cannot_forget_ends_with_the_overflow():
    async def play(self, item, ctx):
        await ask(ctx.endpoint, user("x"))
        await ask(ctx.endpoint, user("x " * 500))

    (trajectory,) = rolled_out(played(Talk, play), max_token_length=200, max_tokens_per_turn=50)
    assert trajectory.stop_reason is StopReason.CONTEXT_OVERFLOW


def test_a_turn_is_scored_before_its_thread_samples_again_and_a_threads_last_at_the_end():
    events = []

    class Noted(Talk):
        def scripted_choices(self, item, messages, tools, skill):
            events.append("sample")
            return super().scripted_choices(item, messages, tools, skill)

        def score_turn(self, item, turn, ctx):
            events.append(f"score {[reply.content for reply in turn.replies]} of {len(ctx.messages)}")
            return 0.0

    async def play(self, item, ctx):
        first = await ask(ctx.endpoint, user("x"))
        await ask(ctx.endpoint, user("x"), first, user("reply"))
        events.append("done")

    rolled_out(played(Noted, play))
    assert events == ["sample", "score ['reply'] of 3", "sample", "done", "score [] of 4"]


def test_rewards_of_overlapping_threads_stand_at_their_turns():
    class Numbered(Talk):
        def score_turn(self, item, turn, ctx):
            return float(len(turn.replies))

    async def play(self, item, ctx):
        slow = await ask(ctx.endpoint, system("slow"), user("x"))
        await ask(ctx.endpoint, system("quick"), user("x"))
        await ask(ctx.endpoint, system("slow"), user("x"), slow, user("a"), user("b"))

    (trajectory,) = rolled_out(played(Numbered, play))
    assert trajectory.rewards.turns == (2.0, 0.0, 0.0)
    assert [turn.thread for turn in trajectory.turns] == [0, 1, 0]


def test_secrets_are_struck_from_what_the_model_sees_and_what_is_recorded():
    async def play(self, item, ctx):
        await ask(ctx.endpoint, user(f"my key is {ctx.endpoint.api_key}"))
        raise ValueError(f"with {ctx.endpoint.api_key}")

    credited = asyncio.run(roll_out(played(Talk, play)))
    line = encode_group(credited)
    assert b"sk-" not in line
    assert b"[secret]" in line


@pytest.mark.parametrize("escapes", [True, False])
async def test_a_secret_is_struck_as_json_writes_it_and_before_a_shorter_one_within_it(escapes):
    whole = '{"kéy": "a part of it"}'

    class Config(AgentEnvConfig):
        @property
        def secrets(self):
            return ("a part of it", whole)

    class Plays(Talk):
        async def play(self, item, ctx):
            body = {"messages": [user(f"my key is {whole}")]}
            await post(ctx.endpoint, json.dumps(body, ensure_ascii=escapes).encode())

    async with Plays(Config(group_size=1, min_group_size=1)) as env:
        (trajectory,) = (await env.run_group(env.tasks()[0])).group.trajectories
    assert trajectory.prompt[0].content == "my key is [secret]"


async def test_an_agent_that_dies_in_the_middle_of_a_stream_keeps_its_turn():
    async def play(self, item, ctx):
        body = json.dumps({"messages": [user("x")], "stream": True})
        headers = {"Authorization": f"Bearer {ctx.endpoint.api_key}"}
        async with aiohttp.ClientSession(headers=headers) as session:
            url = f"{ctx.endpoint.base_url}/chat/completions"
            async with session.post(url, data=body) as answer:
                await answer.content.readany()
                raise ConnectionError("cut")

    (trajectory,) = (await roll_out(played(Talk, play))).group.trajectories
    assert (len(trajectory.turns), trajectory.stop_reason) == (1, StopReason.AGENT_ERROR)


def test_a_broken_agent_costs_no_other_rollout():
    numbers = itertools.count()

    async def play(self, item, ctx):
        number = next(numbers)
        await ask(ctx.endpoint, user("x"))
        if number == 1:
            raise SystemExit
        if number == 2:
            asyncio.current_task().cancel()
            await asyncio.sleep(1)

    trajectories = rolled_out(played(Talk, play), group_size=4)
    reasons = [each.stop_reason for each in trajectories]
    assert reasons.count(StopReason.COMPLETED) == 2
    assert reasons.count(StopReason.AGENT_ERROR) == 2


def test_an_agent_has_no_condenser_and_one_way_to_play():
    async def play(self, item, ctx):
        """Is never called."""

    with pytest.raises(ConfigError, match="a recorded agent keeps its own history"):
        asyncio.run(roll_out(played(Talk, play), condenser=["fit_context"]))


async def test_a_play_on_a_thread_is_one_of_many():
    def play(self, item, ctx):
        import urllib.request

        data = json.dumps({"messages": [user("x")]}).encode()
        headers = {"Authorization": f"Bearer {ctx.endpoint.api_key}"}
        asked = urllib.request.Request(f"{ctx.endpoint.base_url}/chat/completions", data, headers)
        assert urllib.request.urlopen(asked).status == 200

    credited = await roll_out(played(Talk, play), group_size=300, max_concurrent_rollouts=300)
    assert len(credited.group.trajectories) == 300


async def test_a_policy_that_fails_in_the_middle_of_a_stream_is_an_error_event_and_a_retry_works(monkeypatch):
    monkeypatch.setattr(endpoint, "_PING_S", 0.01)
    failed = []

    async def play(self, item, ctx):
        client = ctx.endpoint.client(max_retries=0)
        asked = {"model": "m", "messages": [user("x")], "stream": True}
        with pytest.raises(openai.APIError, match="the server is away"):
            [chunk async for chunk in await client.chat.completions.create(**asked)]
        failed.append(True)
        chunks = [chunk async for chunk in await client.chat.completions.create(**asked)]
        assert chunks[-1].choices[0].finish_reason == "stop"

    class Slow(Talk):
        async def scripted_choices(self, item, messages, tools, skill):
            await asyncio.sleep(0.1)
            if not failed:
                raise PolicyError("the server is away")
            return Talk.scripted_choices(self, item, messages, tools, skill)

    (trajectory,) = (await roll_out(played(Slow, play))).group.trajectories
    assert (len(trajectory.turns), trajectory.stop_reason) == (1, StopReason.COMPLETED)


async def test_an_agent_that_was_only_refused_is_told_of_with_the_refusal():
    async def play(self, item, ctx):
        await post(ctx.endpoint, {"messages": [user("x")], "n": 2})

    credited = await roll_out(played(Talk, play))
    assert "a request was refused with 400: n=2" in credited.group.failures[0].error


def test_a_field_that_no_agent_may_send_is_named_once_and_ends_a_run_that_has_nothing_good(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "several.py").write_text(SEVERAL)
    assert main(["process", "several.py", "--env.group_size", "4"]) == 1
    lines = [line for line in capsys.readouterr().out.splitlines() if "n=2 cannot be honoured" in line]
    first, last = lines
    assert first.startswith("RequestsRefused: the agent ended without a completion of the model: a request ")
    assert last.startswith("stopped: the first rollouts of 3 items failed alike: RequestsRefused: ")


def test_an_agent_that_always_breaks_ends_a_run_that_has_nothing_good(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken.py").write_text(BROKEN)
    assert main(["process", "broken.py"]) == 1
    shown = capsys.readouterr()
    assert "failed alike: ValueError at the agent" in shown.out + shown.err
    assert "the agent's own" in shown.out + shown.err


def test_max_turns_is_no_more_with_threads_side_by_side():
    async def play(self, item, ctx):
        async def thread(name):
            history = [system(name), user("x")]
            while True:
                status, answer, _ = await post(ctx.endpoint, {"messages": history})
                if status != 200:
                    return
                history += [answer["choices"][0]["message"], user("on")]

        await asyncio.gather(*(thread(f"{n}") for n in range(20)))

    assert [len(each.turns) for each in rolled_out(played(Talk, play), max_turns=37, group_size=4)] == [
        37
    ] * 4


async def test_scoring_that_outlasts_the_time_is_no_error_of_the_agent():
    class Slow(Talk):
        async def score_turn(self, item, turn, ctx):
            await asyncio.sleep(4)
            return 1.0

    async def play(self, item, ctx):
        first = await ask(ctx.endpoint, user("x"))
        await ask(ctx.endpoint, user("x"), first, user("on"))

    (trajectory,) = (await roll_out(played(Slow, play), rollout_timeout_s=3)).group.trajectories
    assert (trajectory.stop_reason, trajectory.rewards.turns) == (StopReason.TIME_BUDGET, (1.0,))


async def test_a_second_model_that_comes_back_costs_nothing():
    tried = []

    def scripted_judge(self, item, messages):
        tried.append(messages)
        if len(tried) == 1:
            raise PolicyError("away")
        return "an answer"

    async def play(self, item, ctx):
        await ask(ctx.endpoint, user("x"))
        asked = {"model": "grader", "messages": [user("which?")]}
        assert [(await post(ctx.endpoint, asked))[0] for _ in range(2)] == [503, 200]

    cls = played(Talk, play, other_models={"grader": "judge"}, scripted_judge=scripted_judge)
    assert (await roll_out(cls)).group.failures == ()


SEVERAL = """
from turnwise import AgentEnv

class Several(AgentEnv):
    name = "several"
    sandbox = "none"

    def load_items(self):
        return [{"id": str(number)} for number in range(4)]

    async def play(self, item, ctx):
        messages = [{"role": "user", "content": "x"}]
        await ctx.endpoint.client().chat.completions.create(model="m", messages=messages, n=2)

    def compute_reward(self, item, trajectory, ctx):
        return 1.0
"""

BROKEN = """
from tests.environments.rollout.agents.recorded import Talk, ask, user

class Broken(Talk):
    def load_items(self):
        return [{"id": str(n)} for n in range(5)]

    async def play(self, item, ctx):
        await ask(ctx.endpoint, user("x"))
        raise ValueError("the agent's own")
"""
