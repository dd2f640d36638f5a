"""The canaries as one batch at a trajectory API, on the way of `turnwise serve`."""

import asyncio
from collections.abc import Callable
from dataclasses import replace

from environments.serve.delivery import POLL_S, Delivery
from environments.serve.outbox import Outbox, OutboxThread
from environments.serve.registration import Identity, Registration
from environments.serve.trajectory_api import ApiState, ApiUnavailableError, TrajectoryApi
from environments.wire.padding import padding_of
from environments.wire.payloads import Part, Shape, compress, pack
from environments.wire.training_rows import columns_of
from tools.errors import ConfigError
from turnwise.lab.probe.canaries import GROUP_SIZE
from turnwise.lab.probe.trainer_probe import Probe


async def serve_canaries(probe: Probe, api_url: str, say: Callable[[str], None], token: str = "") -> None:
    """Wait for a trainer, give it all canaries in one batch, and return once it has taken them.

    Raises:
        ConfigError: no trajectory API there or no longer, one that holds groups of others, or a batch that
            cannot hold all canaries at once.
    """
    assert probe.asked.view is not None
    shape = Shape(group_size=GROUP_SIZE, view=probe.asked.view, divisor=probe.asked.divisor)
    parts = [part for group in probe.groups for part in pack(group, shape).parts]
    longest_row = max(part.longest_row for part in parts)
    api = TrajectoryApi(api_url, token)
    say(f"waiting at {api.url} for a trainer that registers {_wanted(parts, shape)}")
    for file in probe.folder.glob("outbox.sqlite*"):
        file.unlink()
    with Outbox(probe.folder / "outbox.sqlite") as outbox:
        in_outbox = OutboxThread(outbox)
        identity = Identity(name=f"canaries-{outbox.fact('run_id')}", max_row_tokens=longest_row)
        registration = Registration(api, identity, shape, in_outbox, say=say)
        async with Delivery(in_outbox, api, registration, say=say) as delivery:
            before = await _with_trainer(api)
            _refuse_what_cannot_be_one_step(before, longest_row)
            parts += _padding(probe, parts, shape, before.batch_size)
            await in_outbox(lambda outbox: outbox.put("canaries", parts))
            delivering = asyncio.create_task(delivery.run())
            try:
                # One batch is all there is: the step moves on when it is handed out.
                while delivery.waiting or delivery.state is None or delivery.state.step <= before.step:
                    await asyncio.wait({delivering}, timeout=POLL_S)
                    if delivering.done():
                        delivering.result()
                    # One that was started again knows no trainer: waiting for it would be for ever.
                    await _state(api)
            finally:
                delivering.cancel()
            await delivery.flush(1.0)
    probe.served(before.batch_size)


async def _with_trainer(api: TrajectoryApi) -> ApiState:
    """The API's state once a trainer has registered there."""
    while True:
        state = await _state(api)
        if state.batch_size > 0:
            return state
        await asyncio.sleep(POLL_S)


async def _state(api: TrajectoryApi) -> ApiState:
    try:
        return await api.state()
    except ApiUnavailableError as error:
        raise ConfigError(f"{error}; start it with run-api, and begin again") from None


def _refuse_what_cannot_be_one_step(state: ApiState, longest_row: int) -> None:
    if state.queued:
        raise ConfigError(
            f"the API holds {state.queued} groups that no trainer has taken, and they would be in the step; "
            f"start run-api and the trainer anew, and begin again"
        )
    if 0 < state.max_row_tokens < longest_row:
        raise ConfigError(
            f"the trainer takes rows of up to {state.max_row_tokens} tokens, and the longest canary has "
            f"{longest_row}; register with max_token_len {longest_row} or more"
        )


def _padding(probe: Probe, parts: list[Part], shape: Shape, batch_rows: int) -> list[Part]:
    """Posts that teach nothing, for what is left of the batch."""
    size = shape.rows_per_post
    missing = batch_rows - len(parts) * size
    if missing < 0 or missing % size:
        raise ConfigError(
            f"the trainer registered batches of {batch_rows} rows, and one step has to take all canaries: "
            f"register {_wanted(parts, shape)}"
        )
    group = probe.row_groups()[0]
    padding = replace(group, rows=tuple(padding_of(group.rows[0], [0.0] * size)))
    part = Part(body=compress(columns_of(padding)), longest_row=len(padding.rows[0].tokens))
    return [part] * (missing // size)


def _wanted(parts: list[Part], shape: Shape) -> str:
    rows = len(parts) * shape.rows_per_post
    of_size = "" if shape.rows_per_post == 1 else f", a multiple of {shape.rows_per_post}"
    return f"a batch of {rows} rows or more{of_size} (with accumulation), and takes one step"
