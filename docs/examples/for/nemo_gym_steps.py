"""NeMo Gym: step rewards. A resources server's `verify` returns one per model call, and they become advantages.

nemo-gym 0.4 needs Python 3.12 and is not installed here: this is written against its published types
(`BaseVerifyResponse`, whose subclass carries `step_rewards`; output items with `generation_token_ids`), of
which the test has stand-ins. `reward` stays what its trainers read: the outcome.
"""

from types import SimpleNamespace

from turnwise.credit import turn_advantages


def model_calls(response):
    """Return the output items that were sampled; those of a tool or a user have no generated ids."""
    return [each for each in response.output if getattr(each, "generation_token_ids", None)]


def credit(verified, group_ids, **params):
    """Return an advantage for each generated token, `[rollout][call][token]`, of a batch of rollouts.

    `verified`: the responses of `verify`; `step_rewards` has a number, or None for not scored, per model call.
    """
    calls = [model_calls(each.response) for each in verified]
    rewards = [each.step_rewards for each in verified]
    rows = turn_advantages(rewards, group_ids, [each.reward for each in verified], **params)
    return [
        [[value] * len(call.generation_token_ids) for call, value in zip(made, row, strict=True)]
        for made, row in zip(calls, rows, strict=True)
    ]


if __name__ == "__main__":
    call = SimpleNamespace(generation_token_ids=[5])
    rows = [1.0, 0.0], [1.0, 1.0, 1.0], [0.0], [0.0, 1.0]
    made = [SimpleNamespace(output=[call] * len(row)) for row in rows]
    batch = [
        SimpleNamespace(response=r, reward=0.0, step_rewards=row) for r, row in zip(made, rows, strict=True)
    ]
    print([[round(each, 3) for (each,) in row] for row in credit(batch, ["task"] * 4)])
