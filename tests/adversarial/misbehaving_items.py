"""An environment for the commands: each item makes one hook of its first rollout misbehave in one way."""

from collections import defaultdict
from itertools import count

from environments.base_env import AgentEnv
from environments.config import AgentEnvConfig
from environments.turn_level_reward import TurnLevelRewardMixin
from tests.adversarial.misbehaving_env import NO_HOOKS, ORDINARY, described, no_sandbox
from tests.adversarial.misbehaviour import HANGS, KINDS, breaks
from tools.registry import Toolset, tool

SPOTS = [spot for spot in ORDINARY if spot not in NO_HOOKS]
ALL = {name: kind for name, kind in {**KINDS, **HANGS}.items() if "long text" not in name}
EVERY = 7


class Items(TurnLevelRewardMixin, AgentEnv):
    """An item for every seventh kind, one place after the other, and good ones before them."""

    name = "misbehaving_items"
    tools = (Toolset("acting", (tool(name="act")(described(lambda sandbox: "ok")),)),)

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.calls = defaultdict(count)

    @classmethod
    def config_init(cls):
        return AgentEnvConfig(group_size=3, hook_timeout_s=3), []

    def load_items(self):
        return PLANNED

    def open_sandbox(self):
        return no_sandbox()


def spot_of(kind, index):
    """One place after the other, those left out where the kind is right."""
    return next(spot for spot in SPOTS[index % len(SPOTS) :] + SPOTS if breaks(kind, spot))


GOOD = [{"id": f"good {index}", "spot": None} for index in range(2)]
BAD = [
    {"id": kind, "kind": kind, "spot": spot_of(kind, index)} for index, kind in enumerate(list(ALL)[::EVERY])
]
PLANNED = GOOD + BAD


def hook(spot):
    def method(self, item, *args):
        if item["spot"] == spot and next(self.calls[item["id"]]) == 0:
            return ALL[item["kind"]](item, *args)
        return ORDINARY[spot](item, *args)

    return method


for name in SPOTS:
    setattr(Items, name, hook(name))
