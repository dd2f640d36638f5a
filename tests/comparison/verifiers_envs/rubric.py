"""A rubric: the right number, in a box, in few words."""

import verifiers.v1 as vf
from common import PROBLEMS

__all__ = ["BoxedTaskset"]


class Data(vf.TaskData):
    answer: str


class BoxedTask(vf.Task[Data]):
    @vf.reward(weight=1.0)
    async def correct(self, trace: vf.Trace) -> float:
        return float(vf.extract_boxed_answer(trace.last_reply, strict=True).strip() == self.data.answer)

    @vf.reward(weight=0.2)
    async def boxed(self, trace: vf.Trace) -> float:
        return float(bool(vf.extract_boxed_answer(trace.last_reply, strict=True)))

    @vf.reward(weight=0.1)
    async def short(self, trace: vf.Trace) -> float:
        return float(len(trace.last_reply) < 200)


class BoxedTaskset(vf.Taskset[BoxedTask, vf.TasksetConfig]):
    def load(self):
        for problem in PROBLEMS:
            prompt = f"{problem['question']} Reason briefly, then answer in \\boxed{{}}."
            data = Data(id=problem["id"], prompt=prompt, answer=problem["answer"])
            yield BoxedTask(data, self.config.task)
