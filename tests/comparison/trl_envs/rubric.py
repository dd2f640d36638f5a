"""A rubric: the right number, in a box, in few words."""

import re

from common import PROBLEMS
from datasets import Dataset


def boxed_in(completion):
    found = re.findall(r"\\boxed\{([^{}]*)\}", completion[-1]["content"])
    return found[-1].strip() if found else None


def correct(completions, answer, **kwargs):
    return [float(boxed_in(completion) == right) for completion, right in zip(completions, answer)]


def boxed(completions, **kwargs):
    return [float(boxed_in(completion) is not None) for completion in completions]


def short(completions, **kwargs):
    return [float(len(completion[-1]["content"]) < 200) for completion in completions]


DATASET = Dataset.from_list(
    [
        {
            "prompt": [
                {
                    "role": "user",
                    "content": f"{problem['question']} Reason briefly, then answer in \\boxed{{}}.",
                }
            ],
            "answer": problem["answer"],
        }
        for problem in PROBLEMS
    ]
)
TRAINER = {"train_dataset": DATASET, "reward_funcs": [correct, boxed, short]}
CONFIG = {"reward_weights": [1.0, 0.2, 0.1]}
