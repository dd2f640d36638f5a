"""An environment for the commands: each item makes one hook of its first rollout misbehave in one way."""

import os
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


class Items(TurnLevelRewardMixin, AgentEnv):
    """As many items as kinds, one place after the other, and good ones between them."""

    name = "misbehaving_items"
    tools = (Toolset("acting", (tool(name="act")(described(lambda sandbox: "ok")),)),)

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.calls = defaultdict(count)

    @classmethod
    def config_init(cls):
        return AgentEnvConfig(group_size=3, hook_timeout_s=3), []

    def load_items(self):
        kinds = list(ALL)[:: int(os.environ.get("EVERY", "1"))]
        spots = [spot_of(kind, index) for index, kind in enumerate(kinds)]
        bad = [
            {"id": f"{kind}, {spot}", "kind": kind, "spot": spot}
            for kind, spot in zip(kinds, spots, strict=True)
        ]
        return [{"id": f"good {index}", "spot": None} for index in range(2)] + bad

    def open_sandbox(self):
        return no_sandbox()


def spot_of(kind, index):
    """One place after the other, those left out where the kind is right."""
    return next(spot for spot in SPOTS[index % len(SPOTS) :] + SPOTS if breaks(kind, spot))


def hook(spot):
    def method(self, item, *args):
        if item["spot"] == spot and next(self.calls[item["id"]]) == 0:
            return ALL[item["kind"]](item, *args)
        return ORDINARY[spot](item, *args)

    return method


for name in SPOTS:
    setattr(Items, name, hook(name))
