"""`next_items` under `serve`: asked as groups end, taken up again from the record, and ended by it."""

from environments.rollout.containment.hook_calls import InFlight
from environments.rollout.items.tasks import PastGroup
from environments.run.process_run import NextItemsTasks
from tests.environments.counted_items import Counted, counted
from tests.environments.serve.serve_world import World, serving


class Twice(Counted):
    """Each item that has come at most once, one after the other."""

    def next_items(self, history):
        return [] if history.in_flight or len(history) >= 3 else [f"i{len(history)}"]


async def served(trained, tmp_path, cls, past=()):
    world = World()
    async with counted(cls) as env:
        with env.lifecycle.hook_calls(InFlight(item_id="", sibling=0)) as calls:
            asked = NextItemsTasks(env, calls, most=-1, past=past, say=print)
            async with serving(trained, tmp_path, world, asked=asked, max_in_flight=2) as loop:
                code = await loop.run()
                return code, world.started, loop.shown.getvalue()


async def test_serve_asks_as_groups_end_and_is_over_when_nothing_is_asked_for(trained, tmp_path):
    code, started, shown = await served(trained, tmp_path, Twice)
    assert (code, started) == (0, [("i0", 0), ("i1", 0), ("i2", 0)]), shown
    assert "next_items asks for nothing more" in shown


async def test_a_restart_goes_on_from_what_the_record_has(trained, tmp_path):
    past = [PastGroup(item_id="i1", epoch=0, status="ok", scores=(1.0,))]
    _, started, _ = await served(trained, tmp_path, Twice, past)
    assert started == [("i1", 1), ("i2", 0)]
