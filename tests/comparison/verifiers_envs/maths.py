"""Maths with a tool: the last message has to be the right number."""

import verifiers.v1 as vf
from common import PROBLEMS

__all__ = ["MathsTaskset"]


class Data(vf.TaskData):
    answer: str


class Multiply(vf.Toolset[vf.SharedToolsetConfig]):
    TOOL_PREFIX = None

    @vf.tool
    def multiply(self, a: int, b: int) -> int:
        """Multiply two numbers.

        Args:
            a: The first.
            b: The second.
        """
        return a * b


class MathsTask(vf.Task[Data]):
    @vf.reward
    async def correct(self, trace: vf.Trace) -> float:
        return float(trace.last_reply.strip() == self.data.answer)


class MathsTaskset(vf.Taskset[MathsTask, vf.TasksetConfig]):
    @classmethod
    def toolsets(cls, config):
        return [Multiply(vf.SharedToolsetConfig())]

    def load(self):
        for problem in PROBLEMS:
            prompt = f"{problem['question']} Answer with the number alone."
            data = Data(id=problem["id"], prompt=prompt, answer=problem["answer"])
            yield MathsTask(data, self.config.task)


if __name__ == "__main__":
    Multiply.run()
