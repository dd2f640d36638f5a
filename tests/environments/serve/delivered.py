"""A registration and a delivery at a real trajectory API, for tests: groups are made of a few numbers."""

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace

from environments.run.group_source import Finishing, finish_group
from environments.serve.delivery import Delivery, DeliveryRules
from environments.serve.outbox import OutboxThread
from environments.serve.registration import Identity, Registration
from environments.serve.trajectory_api import TrajectoryApi
from environments.testing import group_of
from environments.trajectory import CreditedGroup
from environments.wire.payloads import Shape


def credited(name, rows=4, **group):
    """A group of that id; row k has reward k."""
    rewards = [[float(row)] for row in range(rows)]
    return CreditedGroup(
        group=replace(group_of(rewards, **group), group_id=name, item_id=name),
        advantages=tuple((reward[0] - 1.5,) for reward in rewards),
        policy="p",
        estimator="turn_return",
    )


async def put(delivery, group):
    """Hand a group over in the shape that the delivery's registration has."""
    wanted = Finishing(fingerprint=None, has_line=False, shape=delivery._registration.shape)
    await delivery.put(finish_group(group, wanted, max_row_tokens=delivery.max_row_tokens))


@asynccontextmanager
async def registration_at(url, outbox, shape=None, **identity):
    """A registration without a delivery: nothing happens but what the test asks for."""
    client = TrajectoryApi(url)
    in_outbox = OutboxThread(outbox)
    lines = []
    who = Identity(**({"name": f"env-{outbox.fact('run_id')}", "max_row_tokens": 1000} | identity))
    registration = Registration(client, who, shape or Shape(group_size=4), in_outbox, say=lines.append)
    registration.client, registration.in_outbox, registration.lines = client, in_outbox, lines
    try:
        yield registration
    finally:
        await client.close()
        in_outbox.close()


@asynccontextmanager
async def delivery_at(url, outbox, shape=None, identity=None, **options):
    """A delivery that does not run yet."""
    async with registration_at(url, outbox, shape, **(identity or {})) as registration:
        delivery = Delivery(
            registration.in_outbox,
            registration.client,
            registration,
            rules=DeliveryRules(**options),
            say=registration.lines.append,
        )
        delivery.lines, delivery.client = registration.lines, registration.client
        yield delivery


@asynccontextmanager
async def delivering(url, outbox, shape=None, identity=None, **options):
    """A delivery at work."""
    async with delivery_at(url, outbox, shape, identity, **options) as delivery:
        running = asyncio.create_task(delivery.run())
        try:
            yield delivery
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


async def until(delivery, condition):
    """Wait for a state, looking whenever the delivery says that something changed."""
    async with asyncio.timeout(60):
        while not condition():
            await delivery.changed()


async def blocking(function, *args, **named):
    """A call of the test's own client, off the loop that the delivery runs in."""
    return await asyncio.to_thread(function, *args, **named)


def groups_of(batch):
    """The ids of a batch's groups."""
    return [group["overrides"][0]["group_id"] for group in batch]
