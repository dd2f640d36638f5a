"""A rubric: the right number, in a box, in few words."""

from common import PROBLEMS

from turnwise import AgentEnv, Rubric, boxed, numeric_match

RUBRIC = Rubric(correct=1.0, boxed=0.2, short=0.1)


class Boxed(AgentEnv):
    name = "boxed"
    sandbox = "none"

    def load_items(self):
        return PROBLEMS

    def format_prompt(self, item):
        return f"{item['question']} Reason briefly, then answer in \\boxed{{}}."

    def compute_reward(self, item, trajectory, ctx):
        text = trajectory.acts[-1].message.content
        answer = boxed(text)
        return RUBRIC(
            correct=numeric_match(answer, item["answer"]), boxed=answer is not None, short=len(text) < 200
        )
