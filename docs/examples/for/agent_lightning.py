"""Agent Lightning: an advantage per triplet, where its trainer has one reward for all of a rollout's.

agentlightning 0.3 needs agentops and litellm's proxy and is not installed here: this is written against its
published types (`Triplet.reward`, rollouts of one `data_id`), of which the test has stand-ins. Its verl
trainer makes a row of each triplet (`trace_aggregator.level=transition`), each with the rollout's last reward;
write these numbers into `batch.batch["advantages"]`, row by row, behind `compute_advantage`.
"""

from types import SimpleNamespace

from turnwise.credit import turn_advantages


def credit(rollouts, data_ids, **params):
    """Return an advantage per triplet, `[rollout][triplet]`. A reward of None is not scored, which is not 0."""
    rewards = [[triplet.reward for triplet in each.triplets] for each in rollouts]
    return turn_advantages(rewards, data_ids, **params)


def of_rows(advantages, rollout_ids, rows):
    """Return them in the order of a batch: `rows` are pairs of `rollout_id_list` and `turn_index_list`."""
    of_rollout = dict(zip(rollout_ids, advantages, strict=True))
    return [of_rollout[rollout_id][turn] for rollout_id, turn in rows]


if __name__ == "__main__":
    step_rewards = [1.0, 0.0], [1.0, 1.0, 1.0], [0.0], [0.0, 1.0]
    batch = [SimpleNamespace(triplets=[SimpleNamespace(reward=each) for each in row]) for row in step_rewards]
    print([[round(each, 3) for each in row] for row in credit(batch, ["data"] * 4)])
