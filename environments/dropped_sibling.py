"""A rollout that came to its end and is taken out of its group afterwards: what it had cost stays known."""

from environments.trajectory import Failure, StopReason, Trajectory


def dropped(
    trajectory: Trajectory, error_class: str, why: str, *, stop_reason: StopReason | None = None
) -> Failure:
    """The sibling as one that has no score, with the calls and the time that it took."""
    return Failure(
        sibling=trajectory.sibling,
        stop_reason=stop_reason,
        error=f"{error_class}: {why}",
        traceback="",
        turns=len(trajectory.turns),
        error_class=error_class,
        judge_calls=trajectory.judge_calls,
        user_calls=trajectory.user_calls,
        summariser_calls=trajectory.summariser_calls,
        profile=trajectory.profile,
    )
