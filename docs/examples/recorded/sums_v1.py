"""An environment in verifiers' words, as one would install it: add up the numbers of a file."""

import verifiers.v1 as vf

__all__ = ["SumsTaskset"]


class SumData(vf.TaskData):
    numbers: list[int]


class SumTask(vf.Task[SumData, vf.State]):
    async def setup(self, runtime):
        await runtime.write("numbers.txt", "\n".join(map(str, self.data.numbers)).encode())

    @vf.reward
    async def right(self, trace):
        return float(trace.last_reply == str(sum(self.data.numbers)))

    @vf.reward(weight=0.1)
    async def short(self, trace):
        return float(trace.num_turns <= 2)


class SumsTaskset(vf.Taskset[SumTask, vf.TasksetConfig]):
    def load(self):
        for top in range(20, 40, 3):
            numbers = list(range(1, top, 2))
            yield SumTask(SumData(prompt="Add up numbers.txt; reply with the sum alone.", numbers=numbers))
