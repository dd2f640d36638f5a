"""Many lifecycles with random cancellations and kills leave nothing; the benchmark runs 1,000 of them."""

import pytest

from tests.tools.sandbox.chaos import ENDS, leftovers, lifecycles
from tools.sandbox.check import Target


@pytest.mark.parametrize("tier", ["A", "B"])
async def test_lifecycles_that_end_at_random_leave_nothing(tier):
    target = Target(options={"tier": tier})
    await lifecycles(target, 4, seed=0)
    before = await leftovers(target)
    ended = await lifecycles(target, 75, seed=1)
    assert set(ended) == set(ENDS)
    assert await leftovers(target) == before
    # The process that sandboxes of tier B are forked from stays.
    assert before.processes <= 1
    assert (before.sandboxes, before.directories) == (0, 0)
