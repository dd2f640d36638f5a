"""An environment whose rewards use every way to take files out of the agent's sandbox."""

from environments.base_env import AgentEnv
from environments.config import AgentEnvConfig
from environments.policy.scripted import Choice, call, say
from environments.record.recorder import read_contents, read_groups
from environments.run.process_run import process
from environments.run.rescore_run import rescore
from environments.turn_level_reward import TurnLevelRewardMixin
from tests.environments.write_file import quiet
from tools.terminal import terminal

COMMANDS = [
    "mkdir -p pkg/__pycache__; echo 1 >pkg/a; echo x >pkg/__pycache__/a; echo one >out; echo more >>random",
    "echo 22 >pkg/b; ln -s pkg/a link; echo two >>out",
    "rm out; mkdir out",
]


class Keeping(TurnLevelRewardMixin, AgentEnv):
    """Writes files; they are counted, read and verified after each turn and at the end."""

    name = "keeping"
    tools = (terminal,)
    keep = ("random", "pkg")
    weight = 1.0

    async def load_items(self):
        return [{"id": "a"}]

    def format_prompt(self, item):
        return "Write."

    async def prepare(self, item, sandbox):
        await sandbox.write_file("random", bytes(range(250)))

    async def score_turn(self, item, turn, ctx):
        counted = await ctx.verify(
            command="cat pkg/* link out 2>/dev/null | wc -c", artefacts=["pkg", "link", "out"]
        )
        listing = await ctx.artefact("ls", lambda: listed(ctx))
        try:
            size = len(await ctx.artefact("out"))
        except FileNotFoundError:
            size = -1.0
        except IsADirectoryError:
            size = -2.0
        return {"counted": self.weight * int(counted.stdout), "listed": len(listing), "size": size}

    async def compute_outcome(self, item, trajectory, ctx):
        return float(sum(await ctx.artefact("random", max_bytes=256)))

    def scripted_choices(self, item, messages, tools, skill):
        done = sum(message.role == "tool" for message in messages)
        if done == len(COMMANDS):
            return [Choice(probability=1.0, message=say("done"))]
        skipped = call("terminal", {"command": "true"})
        return [
            Choice(probability=0.7, message=call("terminal", {"command": COMMANDS[done]})),
            Choice(probability=0.3, message=skipped),
        ]


async def listed(ctx):
    return (await ctx.sandbox.exec("ls -A")).stdout


def keeping(path, cls=Keeping, **settings):
    out = {} if path is None else {"data_path_to_save_groups": str(path)}
    return cls(AgentEnvConfig(group_size=3, seed=5, **out, **settings), ())


async def recorded(path, cls=Keeping, **settings):
    """The groups of a run."""
    assert await process(keeping(path, cls, **settings), quiet()) == 0
    return list(read_groups(path))


async def rescored(path, cls=Keeping, **settings):
    """The groups of the rescored record."""
    new = path.with_name(f"{path.name}.new")
    await rescore(keeping(None, cls, **settings), path, read_contents(path), new, quiet())
    return list(read_groups(new))


def rewards(groups):
    return [(t.rewards, t.metrics) for group in groups for t in group.group.trajectories]
