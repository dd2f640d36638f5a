"""Branches at the unmodified trajectory API."""

from statistics import fmean

import pytest

from environments.record.recorder import read_groups
from tests.environments.serve.loopback import ended, running, serve, take

COLUMNS = ("overrides", "tokens", "masks", "advantages")


@pytest.fixture
def delivered(api, tmp_path):
    """Pairs of a recorded group and its post; rollouts of a single turn have no branch."""
    api.start_trainer(batch_size=16, max_token_len=40_000)
    options = ("--env.branches", "2", "--env.branch_at", "2")
    with running(serve("WriteWord", api.url, tmp_path, *options)) as env:
        posts = take(api, 2)
        assert ended(env) == 0
    groups = {each.group.group_id: each.group for each in read_groups(tmp_path / "record.jsonl")}
    return [(groups[post["overrides"][0]["group_id"]], post) for post in posts]


def advantages_by_hand(group):
    """[trajectory][turn], for two trunks that branch at turn 2, if they have it."""
    returns = [[sum(filter(None, each.rewards.turns[at:])) for at in range(3)] for each in group.trajectories]
    rows = [[0.0] * len(each.turns) for each in group.trajectories]
    one, other = group.families
    for family, against in ((one, other), (other, one)):
        means = [fmean(returns[each][0] for each in members) for members in (family, against)]
        rows[family[0]][0] = means[0] - means[1]
        for each, sibling in zip(family, reversed(family), strict=True):
            if len(family) == 2:
                for turn in range(1, len(rows[each])):
                    peer = returns[sibling][turn] if turn < len(rows[sibling]) else 0.0
                    rows[each][turn] = (returns[each][turn] - peer) / 2
    return rows


def test_the_trainer_gets_every_turn_once_with_the_weight_of_its_continuation(delivered):
    replayed = 0
    for group, post in delivered:
        rows = list(zip(*(post[name] for name in COLUMNS), strict=True))
        by_hand = advantages_by_hand(group)
        for each, wanted, (_, tokens, mask, advantages) in zip(
            group.trajectories, by_hand, rows[: len(by_hand)], strict=True
        ):
            assert tokens == list(each.rows[0].token_ids)
            for turn, advantage in zip(each.turns, wanted, strict=True):
                span = slice(turn.span.start, turn.span.end)
                is_replayed = each.trunk is not None and turn.index == 0
                replayed += is_replayed
                assert mask[span] == ([-100] * len(tokens[span]) if is_replayed else tokens[span])
                assert set(advantages[span]) == {advantage}
        assert all(override["padding"] for override, *_ in rows[len(by_hand) :])
    assert replayed >= 4
