"""Every estimator against golden vectors: recorded outputs of reference implementations, and our own by hand.

The reference vectors are read from the folder that TURNWISE_GOLDEN_DIR names (default: ../shared/golden
beside the repository); any subset of files and cases works, and none at all leaves the hand-computed ones.
Cases that no estimator covers are skipped one by one, each with its reason, and listed by one test.
"""

import json
import os
import sys
from pathlib import Path

import pytest

from environments.credit import estimate
from environments.testing import group_of
from tests.environments.credit.golden_cases import (
    COVERED,
    NotCoveredError,
    our_own,
)

REPOSITORY = Path(__file__).resolve().parents[3]
OURS = Path(__file__).parent / "golden"
THEIRS = Path(os.environ.get("TURNWISE_GOLDEN_DIR") or REPOSITORY / ".." / "shared" / "golden")


def load():
    cases = []
    for folder, own in ((OURS, True), (THEIRS, False)):
        for path in sorted(folder.glob("*.json")):
            content = json.loads(path.read_text())
            for case in content["cases"]:
                tolerance = case.get("tolerance") or content.get("tolerance") or {"rtol": 1e-4, "atol": 2e-6}
                shared = {"estimator": content["estimator"], "tolerance": tolerance}
                cover = our_own if own else COVERED.get(path.stem)
                where = f"{'own' if own else 'reference'}/{path.stem}/{case['name']}"
                cases.append(pytest.param({**case, **shared, "file": path.stem}, cover, id=where))
    return cases


CASES = load()


def compute(case, cover):
    """What the estimator gives for each expected value that it covers."""
    if cover is None:
        raise NotCoveredError(f"no estimator for {case['file']}")
    return cover(case)


def expected(case, name):
    value = case["expected"]
    for part in name.split("."):
        if part not in value:
            return None
        value = value[part]
    return value


def assert_close(got, wanted, tolerance, where):
    if isinstance(wanted, list):
        assert len(got) == len(wanted), where
        for place, (one, other) in enumerate(zip(got, wanted, strict=True)):
            assert_close(one, other, tolerance, f"{where}[{place}]")
        return
    if wanted is not None:  # null: the reference is not constant inside the turn
        assert got == pytest.approx(float(wanted), rel=tolerance["rtol"], abs=tolerance["atol"]), where


@pytest.mark.parametrize(("case", "cover"), CASES)
def test_an_estimator_gives_what_the_vector_says(case, cover):
    try:
        got = compute(case, cover)
    except NotCoveredError as reason:
        pytest.skip(str(reason))
    compared = 0
    if (per_trajectory := expected(case, "per_trajectory_advantages")) and "per_turn_advantages" in got:
        alike = [
            [value] * len(row) for value, row in zip(per_trajectory, got["per_turn_advantages"], strict=True)
        ]
        assert_close(got["per_turn_advantages"], alike, case["tolerance"], "per_trajectory_advantages")
        compared += 1
    for name, values in got.items():
        if (wanted := expected(case, name)) is not None:
            assert_close(values, wanted, case["tolerance"], name)
            compared += 1
    assert compared, f"nothing of {sorted(case['expected'])} was compared"


def test_own_vectors_exist_for_every_built_in_estimator():
    own = {json.loads(path.read_text())["estimator"] for path in OURS.glob("*.json")}

    assert own == {
        *("gigpo", "grpo", "mt_grpo", "process_supervision"),
        *("progress", "rloo", "turn_gae", "turn_return", "opo", "passk"),
        *("gpg", "grpo_batch", "reinforce_pp", "reinforce_pp_baseline"),
    }


def test_what_no_estimator_covers_is_listed(capsys):
    uncovered = []
    for parameters in CASES:
        case, cover = parameters.values
        try:
            compute(case, cover)
        except NotCoveredError as reason:
            uncovered.append(f"  {parameters.id}: {reason}")
    covered = f"{len(CASES) - len(uncovered)} of {len(CASES)} golden cases are covered; not covered:"
    with capsys.disabled():
        sys.stdout.write("\n".join(["", covered, *(uncovered or ["  none"]), ""]))

    assert len(uncovered) < len(CASES)


@pytest.mark.parametrize("reward", [0.1, 0.3, 0.7, 0.9])
def test_equal_rewards_that_no_float_holds_exactly_leave_no_residue(reward):
    group = group_of([[reward]] * 7)

    assert estimate("grpo", group, preset="verl") == [[0.0]] * 7


def test_process_supervision_gives_zero_where_the_reference_raises():
    assert estimate("process_supervision", group_of([[0.0, 0.0], [0.0]])) == [[0.0, 0.0], [0.0]]


def test_mt_grpo_gives_zero_to_a_group_of_one_where_the_reference_gives_nan():
    assert estimate("mt_grpo", group_of([[0.2, 0.0]], outcomes=[1.0])) == [[0.0, 0.0]]
