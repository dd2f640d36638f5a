"""Groups that every adapter is tried with: the canaries, and one with rows and turns that are not trained."""

from dataclasses import replace

import pytest

from tests.environments.wire.forked_groups import forked_group, with_credit
from turnwise.lab.probe.canaries import CANARIES

CANARY_GROUPS = {name: make() for name, make in CANARIES.items()}
UNTRAINED = with_credit(
    forked_group(
        [[[5, 2], [9, 0]], [[4]], [[2, 7]]],
        [[0.5, None, 1.0, 0.75], [2.0], [0.0, 0.5]],
        untrained=frozenset({(0, 0), (2, 1)}),
    )
)
_SIBLINGS = forked_group([[[3, 2]], [[4, 1]], [[2, 7]]], [[0.5, 1.0], [2.0, 0.0], [0.0, 0.5]])
WITHHELD = with_credit(
    replace(
        _SIBLINGS,
        trajectories=tuple(
            each.withhold("too old") if each.sibling == 1 else each for each in _SIBLINGS.trajectories
        ),
    )
)
"""One sibling is too old: it is compared, and its rows are there, but nothing of it is trained."""
GROUPS = CANARY_GROUPS | {"untrained turns": UNTRAINED, "withheld sibling": WITHHELD}
every_group = pytest.mark.parametrize("credited", GROUPS.values(), ids=GROUPS)
CREDIT_BY_HAND = [[1.0, 0.5], [None, 2.0, 1.0], [0.25]]
"""Turn rewards of a group, for estimators in a trainer's registry."""
ONE_ROW = {
    name: group
    for name, group in CANARY_GROUPS.items()
    if all(len(each.rows) == 1 for each in group.group.trajectories)
}
"""Without conversations that were rewritten, of which a trainer's tensors do not tell the rows apart."""
