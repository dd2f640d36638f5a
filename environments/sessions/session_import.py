"""`import`: logged sessions become groups of trajectories with credit, in a new record."""

import hashlib
from collections.abc import Callable

from environments.data.item_json import item_hash, recorded_item
from environments.policy.rendering.chatml import ChatMLRenderer
from environments.record.origin import RunOrigin
from environments.record.recorder import Recorder
from environments.record.totals import Summary
from environments.sessions.session_file import LoggedGroup, LoggedSession, SessionFile
from environments.sessions.session_rows import with_row
from environments.trajectory import CreditedGroup, Failure, Trajectory, TrajectoryGroup

UNKNOWN_POLICY = "unknown"
"""Who played, where no session of a group names its model."""
Credit = Callable[[TrajectoryGroup, str], CreditedGroup]
"""Advantages for a group that a policy of that name played."""


def record_sessions(
    sessions: SessionFile, recorder: Recorder, origin: RunOrigin, renderer: ChatMLRenderer, credit: Credit
) -> Summary:
    """Write a group for each opening, in the order of the file; what they came to.

    Raises:
        DatasetError: the file was changed meanwhile.
        RecordError: the record cannot be written.
    """
    summary = Summary()
    recorder.begin(origin)
    for logged in sessions.groups():
        group = _group(logged, origin, renderer)
        models = {each.session.model for each in logged.sessions} - {None}
        policy = ", ".join(sorted(map(str, models))) or UNKNOWN_POLICY
        summary.add(recorder.append(credit(group, policy)))
    return summary


def _group(logged: LoggedGroup, origin: RunOrigin, renderer: ChatMLRenderer) -> TrajectoryGroup:
    siblings = [_sibling(each, index, logged.item_id, renderer) for index, each in enumerate(logged.sessions)]
    name = f"{origin.fingerprint}/{logged.item_id}/{logged.epoch}"
    return TrajectoryGroup(
        group_id=hashlib.sha256(name.encode()).hexdigest()[:32],
        env=origin.env,
        item_id=logged.item_id,
        epoch=logged.epoch,
        item=recorded_item(logged.item),
        item_hash=item_hash(logged.item),
        trajectories=tuple(each for each in siblings if isinstance(each, Trajectory)),
        failures=tuple(each for each in siblings if isinstance(each, Failure)),
    )


def _sibling(
    logged: LoggedSession, sibling: int, item_id: str, renderer: ChatMLRenderer
) -> Trajectory | Failure:
    session = logged.session
    name = session.session_id or f"line {logged.line}"
    if not session.turns:
        return _unanswered(sibling, name)
    turns, rows = with_row(session.prompt, session.turns, session.tools, renderer)
    return Trajectory(
        item_id=item_id,
        sibling=sibling,
        session_id=name,
        prompt=session.prompt,
        turns=turns,
        rows=rows,
        tools=session.tools,
        exact=False,
        rewards=session.rewards,
        metrics=session.metrics,
    )


def _unanswered(sibling: int, name: str) -> Failure:
    return Failure(
        sibling=sibling,
        stop_reason=None,
        error=f"RolloutError: the assistant said nothing; session {name}",
        traceback="",
        turns=0,
        error_class="RolloutError",
    )
