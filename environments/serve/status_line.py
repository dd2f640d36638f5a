"""How a serving environment goes, in one line."""

from environments.record.summary import duration, forks_in_short, headline
from environments.record.totals import Summary
from environments.serve.delivery import Delivery


def status_line(delivery: Delivery, summary: Summary, *, in_flight: int, wall_s: float) -> str:
    """The line that `serve` shows now and then.

    Args:
        delivery: knows the API, the outbox and the posts.
        summary: of the groups so far.
        in_flight: groups that roll out.
        wall_s: since the start.
    """
    state, tally, groups, numbers = delivery.state, delivery.tally, summary.groups, summary.values()
    stale = numbers["weights"]["stale"] + tally.stale
    parts = [
        f"step {state.step} · {state.queued} groups queued at the API"
        if state is not None and delivery.online
        else "API away",
        f"outbox {delivery.waiting}",
        f"in flight {in_flight}",
        f"groups {groups['ok']} ok, {groups['no_credit']} without credit, {groups['failed']} failed",
        f"posts {tally.posts}, {tally.repeated} repeated, {tally.rejected} rejected",
        f"rows too long {tally.too_long}",
        f"stale groups {stale}" if stale else "",
        headline(numbers),
        forks_in_short(numbers),
        duration(wall_s),
    ]
    return " · ".join(part for part in parts if part)
