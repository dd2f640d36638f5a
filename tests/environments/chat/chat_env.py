"""An environment without tools or a sandbox, whose rewards need nothing that its record has not."""

from environments.base_env import AgentEnv
from environments.config import AgentEnvConfig
from environments.policy.scripted import Choice, say
from environments.rollout.items.tasks import GroupTask
from environments.turn_level_reward import TurnLevelRewardMixin

WORDS = ("red", "green", "blue")
TASK = GroupTask(item={"id": "a", "word": "red"}, item_id="a")


class Chat(TurnLevelRewardMixin, AgentEnv):
    """Name a colour in each of three turns; the world answers with what was named."""

    name = "chat"
    sandbox = "none"
    worth = 1.0

    async def load_items(self):
        return [{"id": name, "word": word} for name, word in zip("abc", WORDS, strict=True)]

    def format_prompt(self, item):
        return "Name a colour."

    def respond(self, item, turn, ctx):
        return None if turn.index == 2 else f"You said {turn.message.content}."

    async def score_turn(self, item, turn, ctx):
        ctx.metrics["said"] = ctx.metrics.get("said", 0.0) + 1
        return self.worth * (turn.message.content == item["word"])

    def scripted_choices(self, item, messages, tools, skill):
        return [Choice(probability=1 / 3, message=say(word)) for word in WORDS]


class ScalarChat(Chat):
    """The same with one number for the whole."""

    name = "scalar_chat"
    default_estimator = "grpo"
    scoring = AgentEnv.scoring
    score_turn = None

    async def compute_reward(self, item, trajectory, ctx):
        return float(sum(turn.message.content == item["word"] for turn in trajectory.turns))


def chat(cls=Chat, **fields):
    """One with settings; `fields` that the class has are set on a subclass."""
    own = {name: fields.pop(name) for name in list(fields) if name not in AgentEnvConfig.model_fields}
    fields.setdefault("group_size", 4)
    return type(cls.__name__, (cls,), own)(AgentEnvConfig(**fields))


async def group_of_chat(cls=Chat, task=TASK, **fields):
    async with chat(cls, **fields) as env:
        return await env.run_group(task)
