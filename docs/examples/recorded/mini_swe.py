"""mini-swe-agent repairs a program: its model calls are recorded, its commands run in the sandbox."""

import asyncio

import litellm
from minisweagent.agents.default import DefaultAgent
from minisweagent.config import get_config_from_spec
from minisweagent.environments.local import LocalEnvironment
from minisweagent.models.litellm_model import LitellmModel

from turnwise import AgentEnv, Choice, TurnLevelRewardMixin, call

CONFIG = get_config_from_spec("mini.yaml")
CHECK = "from program import *; print((least([3, 1, 2]) == 1) + (half(8) == 4))"
FIXES = ["sed -i s/max/min/ program.py", "sed -i 's:x . 2:x / 2:' program.py"]
litellm.suppress_debug_info = True
# The end of a rollout is a bad request, which mini-swe-agent would try again for minutes.
LitellmModel.abort_exceptions.append(litellm.BadRequestError)


class InSandbox(LocalEnvironment):
    def __init__(self, sandbox):
        super().__init__()
        self.sandbox, self.loop = sandbox, asyncio.get_running_loop()

    def execute(self, action, cwd="", *, timeout=30):
        command = self.sandbox.exec(f"exec 2>&1\n{action['command']}", timeout_s=timeout)
        done = asyncio.run_coroutine_threadsafe(command, self.loop).result()
        output = {"output": done.text(), "returncode": done.exit_code, "exception_info": ""}
        self._check_finished(output)
        return output


class MiniSwe(TurnLevelRewardMixin, AgentEnv):
    """Two bugs: a turn that repairs one is worth 1/2, one that makes one costs that."""

    name = "mini_swe"

    def load_items(self):
        return [{"id": "two_bugs", "task": "Both functions of program.py are wrong. Repair them."}]

    async def prepare(self, item, sandbox):
        await sandbox.write_file("program.py", b"def least(x): return max(x)\ndef half(x): return x * 2\n")

    async def play(self, item, ctx):
        reach = {"api_base": ctx.endpoint.base_url, "api_key": ctx.endpoint.api_key}
        config = CONFIG["model"] | {"model_kwargs": reach, "cost_tracking": "ignore_errors"}
        model = LitellmModel(model_name=f"openai/{ctx.endpoint.model}", **config)
        agent = DefaultAgent(model, InSandbox(ctx.sandbox), **CONFIG["agent"])
        await asyncio.to_thread(agent.run, item["task"])

    async def score_turn(self, item, turn, ctx):
        done = await ctx.sandbox.exec(["python3", "-B", "-c", CHECK])
        before, ctx.notes["right"] = ctx.notes.get("right", 0), int(done.text() or 0)
        return (ctx.notes["right"] - before) / 2

    def scripted_choices(self, item, messages, tools, skill):
        right = [*FIXES, "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"][min(len(messages) // 2 - 1, 2)]
        commands = ((skill, right), (1 - skill, "ls -l"))
        return [Choice(probability=p, message=call("bash", {"command": c})) for p, c in commands]
