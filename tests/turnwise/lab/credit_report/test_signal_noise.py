"""Noise, direction and groups needed are what their formulas say, with intervals of the jackknife."""

import numpy as np
import pytest

from turnwise.lab.credit_report.signal_noise import MIN_UNITS, measure, student


def compare(gradients, units=None):
    """[group][arm][feature], in the unit of rewards."""
    return measure(gradients, units or range(len(gradients)), [True] * gradients.shape[1])


def noisy(factor, *, signal, groups, seed=0, features=20):
    """An arm of variance 1, and one of `factor` × less, of the same mean."""
    draw = np.random.default_rng(seed)
    mean = np.full(features, signal / features**0.5)
    noise = draw.normal(0, features**-0.5, (2, groups, features))
    return np.stack([mean + noise[0], mean + noise[1] / factor**0.5], axis=1).astype(np.float32)


def test_noise_is_a_ratio_of_variances_and_groups_are_one_of_squared_signal_to_noise():
    found = compare(noisy(4, signal=0.5, groups=4_000))[1]
    assert found.noise.value == pytest.approx(4, rel=0.05)
    assert found.groups.value == pytest.approx(4, rel=0.1)
    assert (found.direction, found.groups.low > 3) == (1, True)


def test_less_noise_with_as_much_less_signal_needs_no_fewer_groups():
    plain = noisy(1, signal=0.5, groups=400)
    found = compare(np.stack([plain[:, 0], plain[:, 1] / 3], axis=1))[1]
    assert (found.noise.value, found.groups) == (pytest.approx(9, rel=0.1), None)


def test_an_arm_that_climbs_the_wrong_way_points_against():
    plain = noisy(1, signal=0.7, groups=40)
    found = compare(plain * np.array([1.0, -1.0], dtype=np.float32)[:, None])[1]
    assert (found.direction, found.groups) == (-1, None)


def test_an_interval_is_that_of_deleting_each_unit_anew():
    gradients, units = noisy(3, signal=0.5, groups=24), [*range(12)] * 2  # two epochs of each item
    whole = compare(gradients, units)[1].noise

    def log_of(kept):
        v = gradients[kept].var(axis=0, ddof=1).sum(axis=-1)
        return np.log(v[0] / v[1])

    left_out = np.array([log_of(np.array(units) != unit) for unit in range(12)])
    half = student(0.99, 11) * np.sqrt(11 / 12 * ((left_out - left_out.mean()) ** 2).sum())
    assert np.log(whole.high / whole.value) == pytest.approx(half, rel=1e-4)


def test_a_ratio_whose_denominator_may_be_0_has_no_upper_bound():
    intervals = [compare(noisy(16, signal=0.35, groups=20, seed=seed))[1].groups for seed in range(20)]
    known = [each for each in intervals if each is not None]
    assert any(each.high is None for each in known)
    assert all(1 < each.low < 16 for each in known)


def test_groups_until_known_are_those_with_which_four_in_five_records_know():
    def share(groups):
        return np.mean(
            [compare(noisy(3, signal=0.4, groups=groups, seed=s))[1].groups is not None for s in seeds]
        )

    seeds = range(100)
    named = np.median([compare(noisy(3, signal=0.4, groups=20, seed=s))[1].groups_until.value for s in seeds])
    assert share(round(named / 2)) < 0.8 < share(round(named * 2))


@pytest.mark.parametrize(("degrees", "quantile"), [(1, 6.314), (4, 2.132), (30, 1.697), (10**6, 1.646)])
def test_the_quantile_is_that_of_the_tables(degrees, quantile):
    assert student(0.9, degrees) == pytest.approx(quantile, abs=1e-3)


def test_without_a_signal_no_direction_is_stated():
    stated = 0
    for seed in range(40):
        gradients = np.random.default_rng(seed).normal(0, 1, (20, 4, 30)).astype(np.float32)
        stated += any(each.direction or each.groups for each in compare(gradients).values())
    assert stated <= 4


def test_with_fewer_units_than_eight_nothing_is_compared():
    gradients = noisy(4, signal=1, groups=2 * MIN_UNITS)
    assert compare(gradients, [index // 2 for index in range(2 * MIN_UNITS)])
    assert not compare(gradients, [index % (MIN_UNITS - 1) for index in range(2 * MIN_UNITS)])


def test_without_a_gradient_nothing_is_compared():
    assert not compare(np.zeros((10, 3, 4), dtype=np.float32))


def test_a_multiple_is_named_by_the_first_arm_that_it_equals():
    gradients = noisy(2, signal=1, groups=30)
    found = compare(np.concatenate([gradients, 3 * gradients], axis=1))
    assert (found[2], found[3]) == (0, 1)


def test_units_without_a_gradient_are_no_ground_for_a_statement():
    gradients = np.zeros((30, 2, 4), dtype=np.float32)
    gradients[:7] = np.random.default_rng(4).normal(1, 1, (7, 2, 4))
    assert not compare(gradients)
