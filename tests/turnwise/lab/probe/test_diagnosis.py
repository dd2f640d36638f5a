"""What is found in a step, made here of known parts."""

import re

import numpy as np
import pytest

from turnwise.lab.probe.diagnosis import combine_mistakes, diagnose
from turnwise.lab.probe.step_reading import TrainerStep


@pytest.fixture(scope="module")
def said_of(probe, tokens):
    """The verdict on a step."""
    return lambda step, **known: diagnose(
        TrainerStep(head=step, source="weights", **known), tokens, probe.before
    )


def stepped(tokens, weights, scale=1 / 15):
    """As a trainer saves it: the sum of two float32, less one of them."""
    before = np.random.default_rng(1).standard_normal((2048, 64)).astype(np.float32)
    after = before + (scale * tokens.gradient(weights)).astype(np.float32)
    return after.astype(np.float64) - before


def of(tokens, *said):
    return combine_mistakes(tokens)[said]


def test_the_policy_gradient_is_exact_on_a_scale_that_is_named(tokens, said_of):
    verdict = said_of(stepped(tokens, tokens.advantages))
    assert verdict.exact
    assert verdict.scale == "1/15 rows"
    assert verdict.findings == ()


def test_a_scale_that_nobody_knows_is_a_number_and_is_told_to_be_unknown(tokens, said_of):
    verdict = said_of(stepped(tokens, tokens.advantages, 0.4))
    assert (verdict.exact, verdict.scale) == (True, None)
    assert verdict.norm_ratio == pytest.approx(0.4, rel=1e-5)
    assert "no count of rows, groups or tokens is that factor" in str(verdict)


def test_every_known_mistake_alone_is_named(tokens, said_of):
    named = {
        said[0]: said_of(stepped(tokens, weights))
        for said, weights in combine_mistakes(tokens).items()
        if len(said) == 1
    }
    assert len(named) == 11  # the twelfth is in tokens that were not sampled
    assert {said: verdict.findings for said, verdict in named.items()} == {said: (said,) for said in named}
    assert not any(verdict.exact for verdict in named.values())


def test_tokens_that_were_not_sampled_are_named(tokens, said_of):
    for prompts, said in (
        (True, "prompts are trained"),
        (False, "what tools and users say between turns is trained"),
    ):
        where = ~tokens.trained & (tokens.columns["is_prompt"] == prompts)
        assert said_of(stepped(tokens, tokens.advantages + 0.5 * where)).findings == (said,)


def test_what_is_no_gradient_of_the_canaries_is_a_share_of_the_step(tokens, said_of):
    step = stepped(tokens, tokens.advantages)
    decay = np.random.default_rng(2).standard_normal(step.shape)
    verdict = said_of(step + decay * np.linalg.norm(step) / np.linalg.norm(decay))
    assert not verdict.exact
    assert verdict.findings[-1].startswith("71% of the step is not a gradient")


def per(tokens, level, *numbers):
    """Advantages times a number for each group, row, …, repeated as often as there are some."""
    units = tokens.units(level)
    return tokens.advantages * np.resize(numbers, units.max() + 1)[units]


def cut(tokens, kept):
    return np.where(tokens.columns["index"] < kept, tokens.advantages, 0.0)


DIFFERENT = {
    "groups": (
        lambda tokens: per(tokens, "group", 1.0, 1.0, 1.2, 1.0),
        r"groups \(dropped x1, unscored x1, unequal x1\.2, condensed x1\) do not weigh the same; the first "
        r"is token 4 of its row, in turn 1 of rollout 1 of the canary 'unequal': advantage .*",
    ),
    "rows": (
        lambda tokens: per(tokens, "row", 1.0, 1.0, 3.0, 1.0),
        r"rows do not weigh the same; the first is token 4 of its row, in turn 1 of rollout 3 of the canary "
        r"'dropped': advantage .*",
    ),
    "turns": (
        lambda tokens: np.where(tokens.units("turn") == 11, 4.0, tokens.advantages),
        r"turns do not weigh the same; the first is token 8 of its row, in turn 2 of rollout 1 of "
        r"the canary 'unscored': advantage 0\.667, weight 4",
    ),
    "cut": (
        lambda tokens: cut(tokens, 20),
        r"tokens of one turn do not weigh the same; the first is token 3005 of its row, in turn 2 of rollout "
        r"1 of the canary 'unequal': .* weight 0",
    ),
}


def test_what_is_no_known_mistake_is_located_by_level_and_token(tokens, said_of):
    wrong = {}
    for name, (weigh, said) in DIFFERENT.items():
        verdict = said_of(stepped(tokens, weigh(tokens)))
        if verdict.exact or len(verdict.findings) != 1 or not re.fullmatch(said, verdict.findings[0]):
            wrong[name] = verdict.findings
    assert wrong == {}


def test_a_turn_of_one_token_that_is_left_out_is_wrong_though_the_cosine_is_one(tokens, said_of):
    group, rollout, turn = (tokens.columns[name] for name in ("group", "rollout", "turn"))
    last = (group == 2) & (rollout == 3) & (turn == 1)
    verdict = said_of(stepped(tokens, np.where(last, 0.0, tokens.advantages)))

    assert verdict.cosine > 0.9999
    assert re.match(r"turns do not weigh the same; .* advantage 0\.125, weight 0$", *verdict.findings)


def test_a_factor_of_one_group_is_wrong_though_the_cosine_is_one(tokens, said_of):
    verdict = said_of(stepped(tokens, per(tokens, "group", 1.0, 1.0, 1.02, 1.0)))
    assert not verdict.exact
    assert verdict.findings


def test_weight_decay_is_named_beside_another_mistake(tokens, said_of, probe):
    said = "rows weigh 1/their trained tokens"
    step = stepped(tokens, of(tokens, said)) - 0.02 * probe.before.head
    assert said_of(step).findings == (
        said,
        "weights decay by 0.02 of themselves: weight_decay is not 0",
    )


def test_an_entropy_bonus_is_named_though_the_cosine_may_be_one(tokens, said_of):
    bonus = 0.01
    step = stepped(tokens, tokens.advantages) + bonus / 15 * tokens.of_entropy
    verdict = said_of(step)
    assert (verdict.exact, verdict.cosine > 0.99) == (False, True)
    assert verdict.findings == (f"entropy is rewarded with {bonus:g} at every token, beside advantages",)


def test_what_is_not_exact_always_has_a_finding(tokens, said_of):
    rng = np.random.default_rng(4)
    step = stepped(tokens, tokens.advantages * (1 + 0.02 * rng.standard_normal(len(tokens.trained))))
    verdict = said_of(step)
    assert not verdict.exact
    assert verdict.findings == ("a little is wrong everywhere: several steps, or a small penalty",)


def test_a_step_that_float32_rounds_away_is_named(tokens, said_of):
    step = stepped(tokens, tokens.advantages, 1e-7)
    verdict = said_of(step, rounding=float(np.linalg.norm(step)))
    assert (verdict.exact, len(verdict.findings)) == (False, 1)
    assert "a larger learning rate" in verdict.findings[0]


def test_a_head_that_did_not_move_and_numbers_that_are_not_finite_are_named(tokens, said_of):
    (finding,) = said_of(np.zeros((2048, 64))).findings
    assert finding.startswith("the head did not move")
    (finding,) = said_of(np.full((2048, 64), np.nan)).findings
    assert finding == "the step has numbers that are not finite"
