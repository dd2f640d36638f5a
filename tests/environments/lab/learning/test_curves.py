"""The curve that a terminal shows of an arm."""

import io

from rich.console import Console

from environments.lab.learning.curves import Curves
from environments.lab.learning.run_arm import LearnedArm, LearnedStep


def test_the_last_bar_is_how_far_an_arm_got_also_where_steps_share_a_cell():
    curves = Curves(["fast", "slow"], 1)
    for arm, values in (("fast", [0.0, 0.1, 1.0]), ("slow", [0.0] * 121)):
        steps = [LearnedStep(step=step, success=value, seconds=0.0) for step, value in enumerate(values)]
        for step in steps:
            curves.add(arm, 0, step)
        curves.end(LearnedArm(arm=arm, seed=0, steps=None, curve=tuple(steps)))
    shown = io.StringIO()
    Console(file=shown, width=60).print(curves.picture(60))
    fast, slow = shown.getvalue().splitlines()[:2]
    assert fast.split()[1] == "█"
    assert set(slow.split()[1]) == {"▁"}
