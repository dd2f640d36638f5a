"""Maths with a tool: the last message has to be the right number."""

from common import PROBLEMS
from datasets import Dataset


def multiply(a: int, b: int) -> int:
    """Multiply two numbers.

    Args:
        a: The first.
        b: The second.

    Returns:
        Their product.
    """
    return a * b


def correct(completions, answer, **kwargs):
    return [
        float(completion[-1]["content"].strip() == right) for completion, right in zip(completions, answer)
    ]


DATASET = Dataset.from_list(
    [
        {
            "prompt": [{"role": "user", "content": f"{problem['question']} Answer with the number alone."}],
            "answer": problem["answer"],
        }
        for problem in PROBLEMS
    ]
)
TRAINER = {"train_dataset": DATASET, "reward_funcs": correct, "tools": [multiply]}
