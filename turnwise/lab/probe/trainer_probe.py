"""A probe: a model and canaries for one step of a trainer, also served as one batch at a trajectory API."""

import asyncio
import json
import math
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from environments.record.recorder import Recorder
from environments.serve.delivery import POLL_S, Delivery
from environments.serve.outbox import Outbox, OutboxThread
from environments.serve.registration import Identity, Registration
from environments.serve.trajectory_api import ApiState, ApiUnavailableError, TrajectoryApi
from environments.trainers.completion_columns import CompletionColumns, completion_columns
from environments.trajectory import CreditedGroup
from environments.wire.padding import padding_of
from environments.wire.payloads import Part, Shape, compress, pack
from environments.wire.training_rows import Columns, RowGroup, columns_of
from environments.wire.views import VIEWS, Divisor
from tools.errors import ConfigError, TurnwiseError
from turnwise.lab.probe.canaries import GROUP_SIZE, CanaryEnv
from turnwise.lab.probe.canary_model import CanaryModel, write_canary_model
from turnwise.lab.probe.diagnosis import CanaryTokens, StepVerdict, diagnose
from turnwise.lab.probe.step_reading import read_step

DIVISOR = 32
"""Default score divisor: small, so that float32 does not round a step away."""
_MODEL, _RECORD, _REQUEST = "model", "canaries.jsonl", "probe.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeRequest:
    lr: float
    view: str | None = None
    """View of the rows over the API; None without an API."""
    divisor: Divisor = DIVISOR
    batch_rows: int | None = None
    """Rows of the trainer's batch over the API, padding included."""


@dataclass(frozen=True, kw_only=True)
class Probe:
    """A model and canaries for exactly one step of SGD or Adam, without warm-up and dropout."""

    folder: Path
    request: ProbeRequest

    @property
    def lr(self) -> float:
        return self.request.lr

    @property
    def model(self) -> Path:
        return self.folder / _MODEL

    @cached_property
    def before(self) -> CanaryModel:
        return CanaryModel()

    @cached_property
    def groups(self) -> tuple[CreditedGroup, ...]:
        return tuple(self.before.groups())

    def columns(self, *, rows: int | None = GROUP_SIZE, pad_id: int = 0) -> list[CompletionColumns]:
        """Return each group as completion columns; `rows=None` adds no padding for dropped siblings."""
        return [completion_columns(group, rows=rows, pad_id=pad_id) for group in self.groups]

    def env(self, **_: Any) -> CanaryEnv:
        """Return an environment of the canaries, for adapters that open one: `Rollouts(probe.env)`."""
        env = CanaryEnv()
        env.groups = {group.group.item_id: lambda group=group: group for group in self.groups}
        return env

    def row_groups(self) -> list[RowGroup]:
        show = VIEWS[self.request.view or "token_advantages"]
        return [shown for group in self.groups for shown in show(group, self.request.divisor)]

    def batch(self) -> list[Columns]:
        return [columns_of(group) for group in self.row_groups()]

    def verdict(self, stepped: object, *, is_gradient: bool = False) -> StepVerdict:
        divisor = self.request.divisor if self.request.view is not None else None
        return diagnose(
            read_step(stepped, self.before, self.lr, is_gradient=is_gradient),
            CanaryTokens.of(self.before, self.groups),
            self.before,
            batch_rows=self.request.batch_rows,
            divisor=divisor if isinstance(divisor, int) else None,
        )


def probe_trainer(
    step: Callable[[Probe], object], *, lr: float = 1.0, is_gradient: bool = False
) -> StepVerdict:
    """Let a function take one step on the canaries, and compare it with Σ A ∇log π.

    Args:
        step: trains the model in `probe.model` on `probe.columns()`, `probe.batch()` or `probe.groups` for
            one step at `probe.lr`; returns the model, its state dict or a checkpoint's path after plain
            SGD, the optimizer after Adam.
        lr: the learning rate.
        is_gradient: whether `step` returns the gradient of its loss instead of weights.

    Raises:
        ConfigError: if the step failed, or its result has no weights of the canary model, or only the signs
            of a step.
    """
    with TemporaryDirectory(prefix="turnwise-probe-") as folder:
        probe = begin_probe(Path(folder), ProbeRequest(lr=lr))
        try:
            stepped = step(probe)
        except TurnwiseError:
            raise
        except (Exception, SystemExit) as error:  # an exit code of the step would look like a verdict
            failure = ConfigError(f"the step failed: {type(error).__name__}: {error}")
            failure.add_note("".join(traceback.format_exception(error)))
            raise failure from error
        return probe.verdict(stepped, is_gradient=is_gradient)


def begin_probe(folder: Path, request: ProbeRequest) -> Probe:
    if not 0 < request.lr < math.inf:
        raise ConfigError(f"a learning rate is a number above 0, not {request.lr}")
    if (folder / _MODEL).exists() and not (folder / _REQUEST).exists():
        raise ConfigError(f"{folder} holds a model that is not of a probe; choose another folder")
    try:
        write_canary_model(folder / _MODEL)
    except OSError as error:
        raise ConfigError(f"cannot write {folder}: {error.strerror}") from error
    probe = Probe(folder=folder, request=request)
    with Recorder(folder / _RECORD, fresh=True) as recorder:
        for group in probe.groups:
            recorder.append(group)
    _write_request(folder, request)
    return probe


def open_probe(folder: Path) -> Probe:
    try:
        request = ProbeRequest(**json.loads((folder / _REQUEST).read_text()))
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(f"{folder} is not a folder of `turnwise doctor trainer begin`: {error}") from error
    return Probe(folder=folder, request=request)


def _write_request(folder: Path, request: ProbeRequest) -> None:
    (folder / _REQUEST).write_text(json.dumps(asdict(request)) + "\n")


async def serve_canaries(probe: Probe, api_url: str, say: Callable[[str], None], token: str = "") -> None:
    """Wait for a trainer, send it all canaries in one batch, and return once it has fetched them."""
    assert probe.request.view is not None
    shape = Shape(group_size=GROUP_SIZE, view=probe.request.view, divisor=probe.request.divisor)
    parts = [part for group in probe.groups for part in pack(group, shape).parts]
    longest_row = max(part.longest_row for part in parts)
    api = TrajectoryApi(api_url, token)
    say(f"waiting at {api.url} for a trainer that registers {_batch_text(parts, shape)}")
    for file in probe.folder.glob("outbox.sqlite*"):
        file.unlink()
    with Outbox(probe.folder / "outbox.sqlite") as outbox:
        in_outbox = OutboxThread(outbox)
        identity = Identity(name=f"canaries-{outbox.fact('run_id')}", max_row_tokens=longest_row)
        registration = Registration(api, identity, shape, in_outbox, say=say)
        async with Delivery(in_outbox, api, registration, say=say) as delivery:
            while (before := await _state(api)).batch_size <= 0:  # noqa: ASYNC110  # the API is polled
                await asyncio.sleep(POLL_S)
            _refuse_what_cannot_be_one_step(before, longest_row)
            parts += _padding(probe, parts, shape, before.batch_size)
            await in_outbox(lambda outbox: outbox.put("canaries", parts))
            delivering = asyncio.create_task(delivery.run())
            try:
                # The API's step counter advances when the trainer fetches the batch.
                while delivery.waiting or delivery.state is None or delivery.state.step <= before.step:
                    await asyncio.wait({delivering}, timeout=POLL_S)
                    if delivering.done():
                        delivering.result()
                    # Raises for an API that restarted, which would never send the batch.
                    await _state(api)
            finally:
                delivering.cancel()
            await delivery.flush(1.0)
    _write_request(probe.folder, replace(probe.request, batch_rows=before.batch_size))


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
    size = shape.rows_per_post
    missing = batch_rows - len(parts) * size
    if missing < 0 or missing % size:
        raise ConfigError(
            f"the trainer registered batches of {batch_rows} rows, and one step has to take all canaries: "
            f"register {_batch_text(parts, shape)}"
        )
    group = probe.row_groups()[0]
    padding = replace(group, rows=tuple(padding_of(group.rows[0], [0.0] * size)))
    part = Part(body=compress(columns_of(padding)), longest_row=len(padding.rows[0].tokens))
    return [part] * (missing // size)


def _batch_text(parts: list[Part], shape: Shape) -> str:
    rows = len(parts) * shape.rows_per_post
    of_size = "" if shape.rows_per_post == 1 else f", a multiple of {shape.rows_per_post}"
    return f"a batch of {rows} rows or more{of_size} (with accumulation), and takes one step"
