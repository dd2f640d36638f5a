"""`next_items` that raises, hangs or gives nonsense: one clear end, and every group that ended is kept."""

import asyncio
import sys

import pytest

from environments.record.recorder import read_groups
from environments.run.process_run import process
from tests.environments.counted_items import Counted, counted, shown_console
from tests.tables import cases
from tools.errors import ConfigError, RunError


def processing(tmp_path, next_items, **fields):
    hooked = type("Hooked", (Counted,), {"next_items": next_items})
    return counted(hooked, data_path_to_save_groups=str(tmp_path / "r.jsonl"), total_steps=6, **fields)


NONSENSE = {
    "generator": ((each for each in ["i1"]), "is a generator"),
    "unknown": (["i99"], r"gave 'i99', which is the id of none .* self.item_ids: 'i0', 'i1', 'i2', …"),
    "none-in-list": ([None], "gave None, which is the id of none"),
}


@cases("given", NONSENSE.values(), ids=NONSENSE)
async def test_what_names_no_item_is_refused_in_one_line(tmp_path, given):
    value, reason = given
    with pytest.raises(ConfigError, match=reason):
        await process(processing(tmp_path, lambda self, history: value), shown_console())


def _raise(self, history):
    raise ValueError("no level")


def _exit(self, history):
    sys.exit(3)


async def _cancel(self, history):
    raise asyncio.CancelledError


@pytest.mark.parametrize("hook", [_raise, _exit, _cancel], ids=["raises", "exits", "cancels"])
async def test_a_hook_that_breaks_ends_the_run_after_what_is_in_flight(tmp_path, hook):
    def next_items(self, history):
        return hook(self, history) if history else ["i1"] if not history.in_flight else None

    console = shown_console()
    with pytest.raises(RunError, match="next_items broke"):
        await process(processing(tmp_path, next_items), console)
    assert [each.group.item_id for each in read_groups(tmp_path / "r.jsonl")] == ["i1"]
    assert "stopped with 5 groups to go" in console.file.getvalue()


async def test_a_hook_that_hangs_is_over_at_its_limit(tmp_path):
    async def next_items(self, history):
        await asyncio.Event().wait()

    env = processing(tmp_path, next_items, hook_timeout_s=2.0)
    with pytest.raises(RunError, match=r"next_items took longer than 2 s \(--env\.hook_timeout_s\)"):
        await process(env, shown_console())
