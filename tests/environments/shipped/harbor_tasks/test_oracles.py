"""What a list of what comes may not cost: the solutions of many tasks score what they need to."""

import pytest

from tests.environments.shipped.harbor_tasks.oracle_tasks import NEED_MORE, SPECIAL, scores, write_tasks
from tests.tools.sandbox.conftest import docker_engine

__all__ = ["docker_engine"]


@pytest.mark.docker
@pytest.mark.soak
@pytest.mark.timeout(3600)
async def test_each_solution_that_needs_no_tools_of_its_own_scores_1(docker_engine, tmp_path):
    some = [*SPECIAL][::3]
    # All 138 take a quarter hour: `python -m tests.environments.shipped.harbor_tasks.oracle_tasks FILE`.
    names, found = write_tasks(tmp_path, lambda name: name in some or "_tmp_work" in name), {}
    await scores(tmp_path, found=found.__setitem__)
    assert len(names) >= 30
    assert found == {name: float(name not in NEED_MORE) for name in names}
