"""Images of items: one preparation for all who wait, the next ones ahead, a failure that is its own alone."""

import asyncio

import pytest

from environments.rollout.lifecycle.sandboxes import ItemImages
from tools.errors import ConfigError, ImageUnavailable


class Preparations:
    """Notes which images were begun, and holds them back until they are let go."""

    def __init__(self, *missing, held=False):
        self.begun = []
        self.missing = set(missing)
        self.gate = asyncio.Event()
        if not held:
            self.gate.set()

    async def __call__(self, image):
        self.begun.append(image)
        await self.gate.wait()
        if image in self.missing:
            raise ConfigError(f"no {image}")


async def settle():
    """Let every task go as far as it can."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_those_who_need_one_image_wait_for_one_preparation():
    prepare = Preparations(held=True)
    images = ItemImages(prepare)
    waiting = [asyncio.create_task(images.ready("a")) for _ in range(4)]
    await settle()
    prepare.gate.set()
    await asyncio.gather(*waiting)
    assert prepare.begun == ["a"]


async def test_only_the_next_two_are_made_ready_ahead():
    prepare = Preparations()
    images = ItemImages(prepare, ["a", "b", "a", "c", "d", "e"])
    await images.ready("a")
    await settle()
    assert prepare.begun == ["a", "b", "c"]
    await images.ready("c")
    await settle()
    assert prepare.begun == ["a", "b", "c", "d", "e"]


async def test_a_missing_image_fails_who_needs_it_and_is_tried_again():
    prepare = Preparations("a")
    images = ItemImages(prepare, ["a", "b"])
    with pytest.raises(ImageUnavailable, match="no a"):
        await images.ready("a")
    await images.ready("b")
    prepare.missing.clear()
    await images.ready("a")
    assert prepare.begun == ["a", "b", "a"]


async def test_whoever_is_cancelled_takes_the_preparation_from_nobody_else():
    prepare = Preparations(held=True)
    images = ItemImages(prepare)
    first, second = (asyncio.create_task(images.ready("a")) for _ in range(2))
    await settle()
    first.cancel()
    prepare.gate.set()
    await second
    assert first.cancelled() or first.cancelling()


async def test_closing_ends_what_is_made_ready_for_nobody():
    prepare = Preparations(held=True)
    images = ItemImages(prepare, ["a", "b"])
    waiting = asyncio.create_task(images.ready("a"))
    await settle()
    await images.aclose()
    await asyncio.wait({waiting})
    assert waiting.cancelled()
