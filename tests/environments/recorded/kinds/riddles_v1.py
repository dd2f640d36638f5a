"""A single-turn environment of verifiers: one question, one answer, two weighted rewards."""

import verifiers.v1 as vf

__all__ = ["RiddlesTaskset"]


class RiddleData(vf.TaskData):
    answer: str


class Riddle(vf.Task[RiddleData, vf.State]):
    @vf.reward
    async def right(self, trace):
        return float(self.data.answer in trace.last_reply)

    @vf.reward(weight=0.5)
    async def short(self, trace):
        return 1 / len(trace.last_reply.split())


class RiddlesTaskset(vf.Taskset[Riddle, vf.TasksetConfig]):
    def load(self):
        for town, land in (("Oslo", "Norway"), ("Lima", "Peru")):
            data = RiddleData(prompt=f"The capital of {land}?", system_prompt="Be brief.", answer=town)
            yield Riddle(data)
