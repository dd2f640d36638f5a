"""torchtitan's RL: an `AdvantageEstimator` of turns, from the `env_rewards` of each `RolloutTurn`.

torchtitan 0.3 needs spmd_types and monarch and is not installed here: this is written against its published
types, of which the test has stand-ins. Its trainer has one advantage a rollout and broadcasts it over a
sample's tokens; `spread` writes those of the turns in their place, behind `TrainingSampleBuilder`.
"""

from types import SimpleNamespace

from turnwise.credit import turn_advantages


class TurnAdvantages:
    """In the place of `AdvantageEstimator`, after the rubric: `Rollouter.Config(advantage=…)`."""

    of_turns = {}

    def __call__(self, group):
        """Return one number a rollout, for the trainer's metrics and filters; keep those of the turns."""
        rewards = [[sum(turn.env_rewards.values()) for turn in each.turns] for each in group.rollouts]
        outcomes = [each.reward for each in group.rollouts]  # without what the turns earned
        rows = turn_advantages(rewards, [group.group_id] * len(rewards), outcomes)
        ids = [(each.group_id, each.rollout_id) for each in group.rollouts]
        self.of_turns = {**self.of_turns, **dict(zip(ids, rows, strict=True))}
        return [sum(row) / max(1, len(row)) for row in rows]

    def spread(self, rollout, samples):
        """Write each turn's advantage on its tokens; a rollout's samples have its turns in order."""
        turns = zip(rollout.turns, self.of_turns.pop((rollout.group_id, rollout.rollout_id)), strict=True)
        values = iter([value for turn, value in turns for _ in turn.completion_token_ids])
        for sample in samples:
            sample.advantage = [next(values) if trained else 0.0 for trained in sample.loss_mask]
        return samples


if __name__ == "__main__":
    rows = [1.0, 0.0], [1.0, 1.0, 1.0], [0.0], [0.0, 1.0]
    turns = [[SimpleNamespace(env_rewards={"env": each}) for each in row] for row in rows]
    rollouts = [SimpleNamespace(group_id=0, rollout_id=i, turns=row, reward=0) for i, row in enumerate(turns)]
    print([round(each, 3) for each in TurnAdvantages()(SimpleNamespace(group_id=0, rollouts=rollouts))])
