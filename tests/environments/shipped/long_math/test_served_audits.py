"""`long_math` played over real HTTP, by the mock server as `turnwise mock-model long_math` starts it."""

from environments.config import ServerConfig
from environments.policy.mock_server import MockSettings, mock_app
from environments.policy.rendering.chatml import EMBEDDED_TOKENIZER_DIR
from environments.shipped.long_math import LongMathEnv
from environments.shipped.long_math.env import LongMathConfig
from environments.trajectory import StopReason
from tests.environments.shipped.long_math.audit_play import is_solved
from tests.equipment.running_server import running_server
from tests.tables import cases
from turnwise.cli.mock_model import items_by_opening, script_for


async def played(kind: str, condenser: str):
    """A group, asked by messages or by token ids."""
    settings = {"ledgers": 2, "group_size": 2, "scripted_skill": 1.0, "condenser": [condenser]}
    async with LongMathEnv(LongMathConfig(**settings)) as env:
        known = await items_by_opening(env)
        app = mock_app(
            lambda messages: script_for(env, known, messages),
            skill=1.0,
            renderer=env.renderer,
            settings=MockSettings(kind="plain" if kind == "chat" else kind),
        )
        async with running_server(app) as url:
            server = ServerConfig(base_url=url, model_name="scripted", server_type=kind, family="chatml")
            config = LongMathConfig(**settings, tokenizer_name=str(EMBEDDED_TOKENIZER_DIR))
            async with LongMathEnv(config, [server]) as remote:
                group = await remote.rollout_group(remote.tasks()[0], 2)
    assert group.failures == ()
    return group.trajectories


@cases("kind", ["chat", "vllm", "sglang"])
@cases("condenser", ["fit_context", "summarise"])
async def test_over_a_server_it_is_finished_and_solved(kind: str, condenser: str):
    for trajectory in await played(kind, condenser):
        assert trajectory.stop_reason is StopReason.COMPLETED
        assert is_solved(trajectory)
        assert max(len(row.token_ids) for row in trajectory.rows) <= 2048


@cases("kind", ["chat", "vllm"])
async def test_over_a_server_the_window_overflows_without_a_condenser(kind: str):
    assert {t.stop_reason for t in await played(kind, "none")} == {StopReason.CONTEXT_OVERFLOW}
