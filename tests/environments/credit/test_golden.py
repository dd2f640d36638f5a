"""Every estimator against golden vectors: recorded outputs of reference implementations, and our own by hand.

`golden/reference` has the cases of each reference that an estimator claims, and its source.
"""

import json
from pathlib import Path

import pytest

from environments.credit import estimate
from environments.testing import group_of
from tests.environments.credit.golden_cases import COVERED, our_own

OURS = Path(__file__).parent / "golden"
REFERENCE = OURS / "reference"


def load():
    for folder in (OURS, REFERENCE):
        for path in sorted(folder.glob("*.json")):
            content = json.loads(path.read_text())
            for case in content["cases"]:
                tolerance = case.get("tolerance") or content.get("tolerance") or {"rtol": 1e-4, "atol": 2e-6}
                given = {**case, "estimator": content["estimator"], "tolerance": tolerance}
                cover = our_own if folder == OURS else COVERED[path.stem]
                yield pytest.param(given, cover, id=f"{folder.name}/{path.stem}/{case['name']}")


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


@pytest.mark.parametrize(("case", "cover"), [*load()])
def test_an_estimator_gives_what_the_vector_says(case, cover):
    got = cover(case)
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


def test_every_estimator_and_every_reference_has_its_vectors():
    own = {json.loads(path.read_text())["estimator"] for path in OURS.glob("*.json")}
    assert own == {
        *("gigpo", "grpo", "mt_grpo", "process_supervision"),
        *("rloo", "turn_gae", "turn_return", "opo", "passk"),
        *("gpg", "grpo_batch", "reinforce_pp", "reinforce_pp_baseline"),
    }
    counts = {path.stem: len(json.loads(path.read_text())["cases"]) for path in REFERENCE.glob("*.json")}
    assert counts.keys() <= COVERED.keys()
    assert sum(counts.values()) == 117


def test_where_a_reference_raises_or_gives_nan_an_estimator_gives_zero():
    assert estimate("process_supervision", group_of([[0.0, 0.0], [0.0]])) == [[0.0, 0.0], [0.0]]
    assert estimate("mt_grpo", group_of([[0.2, 0.0]], outcomes=[1.0])) == [[0.0, 0.0]]
