import gc

import pytest

from environments.rollout.full_collections import rare_full_collections


@pytest.fixture(autouse=True)
def collector():
    """As it was."""
    thresholds = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    yield
    gc.set_threshold(*thresholds)
    gc.enable()


async def test_only_full_passes_are_rare():
    async with rare_full_collections():
        assert gc.get_threshold()[:2] == (700, 10)
        assert gc.get_threshold()[2] > 1e6


async def test_the_collector_is_as_before_however_environments_overlap():
    first, second = rare_full_collections(), rare_full_collections()
    await first.__aenter__()
    await second.__aenter__()
    await first.__aexit__(None, None, None)
    await second.__aexit__(None, None, None)
    assert gc.get_threshold() == (700, 10, 10)


async def test_a_collector_that_is_off_is_left_alone():
    gc.disable()
    async with rare_full_collections():
        assert gc.get_threshold() == (700, 10, 10)
