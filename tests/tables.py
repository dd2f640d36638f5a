"""Tables of attacks and checks, of which a run without `--soak` takes those that stand for the others."""

import pytest

MARKS = {"docker": [pytest.mark.docker]}


def across(table, everywhere, fixture, kinds, *, slow=()):
    """Parameters `fixture` and `case`: all cases in the first kind, one per mechanism in every other.

    Args:
        table: the cases by their names.
        everywhere: names of those that run in each of the kinds; with `--soak` all do.
        fixture: gets the kind.
        kinds: of sandboxes.
        slow: names of those that run with `--soak` alone.
    """
    return pytest.mark.parametrize(
        (fixture, "case"),
        [
            pytest.param(
                kind, *param.values, id=f"{kind}-{param.id}", marks=[*MARKS.get(kind, []), *param.marks]
            )
            for kind in kinds
            for param in seldom(table, {*table} - {*slow} if kind == kinds[0] else everywhere)
        ],
        indirect=[fixture],
    )


def seldom(table, kept):
    """Parameters of a test for the cases, of which only those that are `kept` run without `--soak`."""
    assert set(kept) <= set(table)
    return [
        pytest.param(case, id=name, marks=[] if name in kept else [pytest.mark.soak])
        for name, case in table.items()
    ]
