"""Credit of continuations that share the turns before a branch turn.

A trunk and its branches are a family of n continuations. Their own turns are compared with one another and
weigh 1/n. The shared turns are trained once, in the trunk, with the family's mean value, which is compared
with other families' means: a continuation's own value in the baseline of its prefix would be biased.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from environments.credit.terms import Place, Pool, Term, mean
from environments.trajectory import TrajectoryGroup


def has_branches(group: TrajectoryGroup) -> bool:
    return any(each.trunk is not None for each in group.trajectories)


def branch_terms(
    group: TrajectoryGroup, values: Sequence[Pool], compare: Callable[[Pool], Term]
) -> list[Term]:
    """Return terms for all turns of a group.

    Args:
        group: trunks and their branches.
        values: pools of comparable values, of turns or of whole trajectories.
        compare: subtracts a baseline made of the other values of a pool.
    """
    size = {members[0]: len(members) for members in group.families}
    family = {index: members[0] for members in group.families for index in members}
    shared: list[range] = []
    own: list[range] = []
    for index, each in enumerate(group.trajectories):
        before = [turn for turn in each.turns if turn.index < (each.branch_turn or 0)]
        start = len(before if size[family[index]] > 1 else each.turns)
        shared.append(range(start if each.trunk is None else 0))
        own.append(range(start, len(each.turns)))
    terms: list[Term] = []
    for pool in values:
        families = pool.grouped_by([family[index] for index, _ in pool.places])
        means = Pool(
            [each.places[0] for each in families.values()], [mean(each.values) for each in families.values()]
        )
        terms += _at(compare(means), shared)
        for trunk, each in families.items():
            if size[trunk] > 1:
                terms += _at(replace(compare(each), weight=1.0 / size[trunk]), own)
    return terms


def _at(term: Term, turns: Sequence[range]) -> Iterator[Term]:
    """Yield the term with its values at the given turns of each trajectory, if there are any."""
    found: list[tuple[int, Place]] = [
        (position, (index, each))
        for position, (index, turn) in enumerate(term.values.places)
        for each in (turns[index] if turn is None else (turn,))
        if each in turns[index]
    ]
    if found:
        yield term.moved([position for position, _ in found], [place for _, place in found])
