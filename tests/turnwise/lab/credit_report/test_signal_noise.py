"""Signal and noise are what their formulas say, and intervals are those of the jackknife."""

import numpy as np
import pytest

from turnwise.lab.credit_report.signal_noise import measure, student


def gradients(*arms):
    """[group][arm][feature] of a list of gradients for each arm."""
    return np.moveaxis(np.array(arms, dtype=np.float32), 0, 1)


def test_a_two_armed_problem_has_the_signal_and_noise_of_its_closed_form():
    # Two actions of probability 1/2, groups of one rollout: s = ±1/2 along one axis, A = 1 for the first.
    # So E g = 1/4 and Var g = 1/16: snr 1. Twice the advantage is the same arm.
    draw = np.random.default_rng(0)
    count = 40_000
    first = draw.random(count) < 0.5
    plain = np.stack([np.where(first, 0.5, 0.0), np.zeros(count)], axis=1)
    noisy = plain + np.stack([np.zeros(count), draw.normal(0.25, 0.5, count)], axis=1)
    found = measure(gradients(plain, 2 * plain, noisy), range(count))
    assert found.figures[0].snr == pytest.approx(1.0, rel=0.02)
    assert found.figures[1].snr == pytest.approx(found.figures[0].snr)
    assert found.figures[2].snr == pytest.approx(0.25 / (1 / 16 + 0.25) ** 0.5, rel=0.02)
    assert found.figures[2].bias == pytest.approx(1 - 0.5**0.5, rel=0.02)


def test_signal_and_noise_are_those_of_all_pairs_of_groups():
    g = np.random.default_rng(1).normal(0.3, 1, (7, 3, 5)).astype(np.float32)
    pairs = [(i, j) for i in range(7) for j in range(7) if i != j]
    u = lambda e, f: np.mean([g[i, e] @ g[j, f] for i, j in pairs])  # noqa: E731
    v = lambda e: ((g[:, e] - g[:, e].mean(0)) ** 2).sum() / 6  # noqa: E731
    for arm, figures in enumerate(measure(g, range(7)).figures):
        assert figures.snr == pytest.approx(max(0, u(arm, 0)) / np.sqrt(u(0, 0) * v(arm)), rel=1e-5)


def test_an_interval_is_that_of_deleting_each_unit_anew():
    g = np.random.default_rng(2).normal(0.5, 1, (12, 2, 5)).astype(np.float32)
    units = np.arange(12) // 2  # two epochs of each item
    left_out = np.array([measure(g[units != unit], units[units != unit]).figures[1].snr for unit in range(6)])
    half = student(0.9, 5) * np.sqrt(5 / 6 * ((left_out - left_out.mean()) ** 2).sum())
    whole = measure(g, units).figures[1]
    assert whole.snr_high - whole.snr == pytest.approx(half, rel=1e-6)


@pytest.mark.parametrize(("degrees", "quantile"), [(1, 6.314), (4, 2.132), (30, 1.697), (10**6, 1.646)])
def test_the_quantile_is_that_of_the_tables(degrees, quantile):
    assert student(0.9, degrees) == pytest.approx(quantile, abs=1e-3)


def test_without_a_signal_nothing_is_certain():
    certain = 0
    for seed in range(40):
        g = np.random.default_rng(seed).normal(0, 1, (20, 4, 30)).astype(np.float32)
        found = measure(g, range(20))
        certain += found.is_signal or any(each.is_certain for each in found.comparisons)
    assert certain <= 4


def test_a_gradient_of_zero_is_no_number_that_is_not_finite():
    found = measure(np.zeros((5, 3, 4), dtype=np.float32), range(5))
    assert [(each.snr, each.groups_per_step, each.bias) for each in found.figures] == [(0.0, None, None)] * 3


def test_a_factor_makes_no_further_arm():
    g = np.random.default_rng(3).normal(1, 1, (30, 2, 5)).astype(np.float32)
    found = measure(np.concatenate([g, 3 * g], axis=1), range(30))
    assert [each.arm for each in found.comparisons] == [1]
