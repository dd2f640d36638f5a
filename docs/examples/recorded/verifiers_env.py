"""An environment of verifiers, unchanged: its agent plays, its rewards are the outcome, and turns are scored here."""

import verifiers.v1 as vf

from turnwise import AgentEnv, Choice, TurnLevelRewardMixin, call, say


class Verifiers(TurnLevelRewardMixin, AgentEnv):
    """`sums-v1`, which stands beside this file; any that is installed goes here."""

    name = "verifiers"
    sandbox = "none"
    settings = {"taskset": {"id": "sums-v1"}, "agent": {"runtime": {"type": "subprocess"}}}
    """What `vf-eval` takes as `--env.…`; `{"type": "docker"}` keeps its agent off this machine."""

    def load_items(self):
        taskset = vf.load_taskset(vf.resolve_env_config(self.settings).taskset)
        self.by_id = {str(task.data.idx): task for task in taskset}
        return [{"id": name, "task": task.data.model_dump(mode="json")} for name, task in self.by_id.items()]

    def prepare(self, item, sandbox):
        return []

    async def play(self, item, ctx):
        to = ctx.endpoint
        client = vf.EvalClientConfig(base_url=to.base_url, headers={"x-api-key": to.api_key})
        env = vf.load_environment(vf.resolve_env_config(self.settings))
        async with env.serving():
            context = vf.ModelContext(model=to.model, client=client)
            episode = await env.run_episode(self.by_id[item["id"]], context)
        ctx.state.extend(trace for trace in episode.traces if trace.agent.trainable)
        if not episode.ok:
            raise RuntimeError([*episode.errors, *(trace.last_error for trace in episode.traces)])

    async def score_turn(self, item, turn, ctx):
        return 0.1 * sum("error" not in result.content for result in turn.tool_results)

    async def compute_outcome(self, item, trajectory, ctx):
        rewards = {}
        for trace in ctx.state:
            for name, reward in trace.rewards.items():
                rewards[name] = rewards.get(name, 0.0) + reward.value
        return rewards or 0.0

    def scripted_choices(self, item, messages, tools, skill):
        if messages[-1].role == "user":
            return [Choice(probability=1.0, message=call("bash", {"command": "cat numbers.txt"}))]
        right = sum(map(int, messages[-1].content.split()))
        return [
            Choice(probability=skill, message=say(str(right))),
            Choice(probability=1 - skill, message=say(str(right + 1))),
        ]
