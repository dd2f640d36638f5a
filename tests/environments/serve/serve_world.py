"""A serving loop at the real API whose rollouts a test controls."""

import asyncio
import io
import os
import signal
import uuid
from contextlib import asynccontextmanager
from dataclasses import replace

from rich.console import Console

from environments.credit.crediting import GroupRules, credited
from environments.record.origin import RunOrigin
from environments.rollout.items.tasks import plan_for_ever
from environments.run.group_source import FinishedGroups, Finishing
from environments.serve.delivery import Delivery, DeliveryRules
from environments.serve.outbox import Outbox, OutboxThread
from environments.serve.registration import Identity, Registration
from environments.serve.serve_loop import Bounds, Rollouts, ServeLoop
from environments.serve.trajectory_api import TrajectoryApi
from environments.testing import group_of
from environments.trajectory import CreditedGroup, Failure, StopReason, TrajectoryGroup
from environments.wire.payloads import Shape
from tools.errors import ConfigError

ITEMS = list("abc")


def group_for(task, rows=4, **changes):
    rewards = [[float(row)] for row in range(rows)]
    group = replace(group_of(rewards), group_id=uuid.uuid4().hex, item_id=task.item_id, epoch=task.epoch)
    made = CreditedGroup(
        group=group,
        advantages=tuple((row - 1.5,) for row in range(rows)),
        policy="p",
        estimator="turn_return",
    )
    return replace(made, **changes)


def lost_model(task):
    failure = Failure(
        sibling=0, stop_reason=StopReason.POLICY_ERROR, error="PolicyError: gone", traceback="", turns=0
    )
    failed = group_for(task, status="failed", reason="0 of 4 rollouts survived", advantages=())
    return replace(failed, group=replace(failed.group, trajectories=(), failures=(failure,)))


def credit(group):
    return credited(group, "turn_return", policy="p", rules=GroupRules(min_trajectories=2))


class World:
    """Rollouts whose every group waits until the test lets it go on."""

    def __init__(self):
        self.started = []
        self.go = asyncio.Event()
        self.go.set()
        self.model_down = False
        self.probes = 0

    async def first(self, task):
        """None: the whole group is rolled out at once."""
        return TrajectoryGroup(trajectories=())

    async def run(self, task, size=None):
        return lost_model(task) if size else await self.run_group(task)

    async def run_group(self, task):
        self.started.append((task.item_id, task.epoch))
        await self.go.wait()
        return lost_model(task) if self.model_down else group_for(task)

    async def probe(self):
        self.probes += 1
        if self.model_down:
            raise ConfigError("no model server answers")


@asynccontextmanager
async def serving(api, tmp_path, world, *, recorder=None, patience_s=None, asked=None, **bounds):
    outbox = Outbox(tmp_path / "o.sqlite")
    client = TrajectoryApi(api.url)
    name = f"env-{outbox.fact('run_id')}"
    in_outbox = OutboxThread(outbox)
    registration = Registration(
        client, Identity(name=name, max_row_tokens=1000), Shape(group_size=4), in_outbox
    )
    shown = io.StringIO()
    console = Console(file=shown, width=200)
    limits = {
        "max_in_flight": 1,
        "max_waiting": 8,
        "group_timeout_s": None,
        "grace_s": 30,
        "total_steps": -1,
    }
    finishing = Finishing(
        fingerprint=None, has_line=recorder is not None, shape=Shape(group_size=4), exact_only=True
    )

    async def all_fresh(done):
        return done

    rollouts = Rollouts(
        tasks=lambda first: plan_for_ever(ITEMS, ITEMS, first),
        next_items=asked,
        source=FinishedGroups(world, finishing, credit),
        finishing=finishing,
        withhold_stale=all_fresh,
        probe=world.probe,
        origin=RunOrigin(env="e", policy="p", estimator="turn_return"),
    )

    def say(line):
        console.print(line, soft_wrap=True)

    delivery = Delivery(in_outbox, client, registration, rules=DeliveryRules(patience_s=patience_s), say=say)
    loop = ServeLoop(
        delivery, rollouts, bounds=Bounds(**(limits | bounds)), console=console, recorder=recorder
    )
    loop.delivery, loop.shown = delivery, shown
    try:
        yield loop
    finally:
        await delivery.close()
        outbox.close()


async def until(condition):
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - many kinds of state are waited for
            await asyncio.sleep(0.01)


def terminate():
    os.kill(os.getpid(), signal.SIGTERM)
