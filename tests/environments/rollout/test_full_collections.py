import asyncio
import gc

import pytest

from environments.rollout.lifecycle import lifecycle as env_lifecycle
from environments.rollout.lifecycle.lifecycle import rare_full_collections

USUAL = (700, 10, 10)


@pytest.fixture(autouse=True)
def collector():
    thresholds = gc.get_threshold()
    gc.set_threshold(*USUAL)
    yield
    gc.set_threshold(*thresholds)
    gc.enable()


def full_passes_are_rare():
    return gc.get_threshold()[:2] == USUAL[:2] and gc.get_threshold()[2] > 1e6


async def test_only_full_passes_are_rare():
    async with rare_full_collections():
        assert full_passes_are_rare()
    assert gc.get_threshold() == USUAL


@pytest.mark.parametrize("first_to_close", [0, 1], ids=["overlapping", "nested"])
async def test_full_passes_are_rare_until_the_last_of_two_environments_closes(first_to_close):
    opened = [rare_full_collections(), rare_full_collections()]
    for each in opened:
        await each.__aenter__()
    await opened[first_to_close].__aexit__(None, None, None)
    assert full_passes_are_rare()
    await opened[1 - first_to_close].__aexit__(None, None, None)
    assert gc.get_threshold() == USUAL


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, asyncio.CancelledError])
async def test_the_collector_is_as_before_after_an_exception(error):
    with pytest.raises(error):
        async with rare_full_collections():
            raise error
    assert gc.get_threshold() == USUAL


async def test_what_somebody_set_meanwhile_stays():
    async with rare_full_collections():
        gc.set_threshold(500, 5, 5)
    assert gc.get_threshold() == (500, 5, 5)


async def test_a_collector_that_is_off_is_left_alone():
    gc.disable()
    async with rare_full_collections():
        assert gc.get_threshold() == USUAL


@pytest.mark.parametrize(("many", "growth", "is_made"), [(1 << 40, 1 << 40, 1), (0, 1 << 40, 0), (0, -1, 1)])
async def test_a_long_pass_is_made_only_once_memory_has_grown(many, growth, is_made, monkeypatch):
    passes, looked = [], asyncio.Event()

    async def at_once(_):
        if looked.is_set():
            await asyncio.Event().wait()
        looked.set()

    monkeypatch.setattr(env_lifecycle, "_MANY_OBJECTS", many)
    monkeypatch.setattr(env_lifecycle, "_GROWTH_BYTES", growth)
    monkeypatch.setattr(env_lifecycle.asyncio, "sleep", at_once)
    monkeypatch.setattr(env_lifecycle.gc, "collect", lambda: passes.append(1))
    async with rare_full_collections():
        await looked.wait()
    assert len(passes) == is_made
