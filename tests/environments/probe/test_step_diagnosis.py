"""What is said of a step, made here of known parts."""

import re

import numpy as np
import pytest

from environments.probe.known_mistakes import known_mistakes
from environments.probe.step_diagnosis import diagnose
from environments.probe.taken_steps import TakenStep


def said_of(step, tokens, **known):
    return diagnose(TakenStep(head=step, source="weights", **known), tokens)


def stepped(tokens, weights, scale=1 / 15):
    """As a trainer saves it: the sum of two float32, less one of them."""
    before = np.random.default_rng(1).standard_normal((2048, 64)).astype(np.float32)
    after = before + (scale * tokens.gradient(weights)).astype(np.float32)
    return after.astype(np.float64) - before


def of(tokens, *said):
    mistakes = known_mistakes(tokens)
    return mistakes.weights[mistakes.sentences.index(said)]


def test_the_policy_gradient_is_exact_on_a_scale_that_is_named(tokens):
    verdict = said_of(stepped(tokens, tokens.advantages), tokens)
    assert verdict.exact
    assert verdict.scale == "1/15 rows"
    assert verdict.findings == ()


def test_a_scale_that_nobody_knows_is_a_number_and_is_told_to_be_unknown(tokens):
    verdict = said_of(stepped(tokens, tokens.advantages, 0.4), tokens)
    assert (verdict.exact, verdict.scale) == (True, None)
    assert verdict.norm_ratio == pytest.approx(0.4, rel=1e-5)
    assert "no count of rows, groups or tokens is that factor" in str(verdict)


def deviation(tokens):
    return tokens.advantages[tokens.trained].std(ddof=1)


SCALES = {
    "length": (lambda tokens: 1 / 16 / 300, "1/16 rows, 4 of every group, 1/300: a maximal length?"),
    "std": (
        lambda tokens: 1 / deviation(tokens),
        "the sum, 1/standard deviation of the advantages, another one in every step",
    ),
}


@pytest.mark.parametrize(("scale", "said"), SCALES.values(), ids=SCALES)
def test_what_a_trainer_divides_by_is_named(tokens, scale, said):
    assert said_of(stepped(tokens, tokens.advantages, scale(tokens)), tokens).scale == said


def test_a_clipped_norm_is_told_from_the_whole_step(tokens):
    verdict = said_of(stepped(tokens, tokens.advantages, 0.043), tokens, whole_norm=0.5)
    assert verdict.exact
    assert verdict.scale.startswith("clipped: the norm of the whole step is 0.5")


def test_every_known_mistake_alone_is_named(tokens):
    mistakes = known_mistakes(tokens)
    named = {
        said[0]: said_of(stepped(tokens, weights), tokens)
        for said, weights in zip(mistakes.sentences, mistakes.weights, strict=True)
        if len(said) == 1
    }
    assert len(named) > 40
    assert {said: verdict.findings for said, verdict in named.items()} == {said: (said,) for said in named}
    assert not any(verdict.exact for verdict in named.values())


def test_two_mistakes_at_once_are_both_named(tokens):
    said = (
        "turns weigh 1/their own length: a turn of L tokens counts as one of 1 token",
        "negative advantages are ignored",
    )
    assert said_of(stepped(tokens, of(tokens, *said)), tokens).findings == ("; ".join(said),)


def test_a_step_downhill_is_named(tokens):
    verdict = said_of(stepped(tokens, -tokens.advantages), tokens)
    assert verdict.cosine == pytest.approx(-1.0, abs=1e-6)
    assert verdict.findings == ("the sign is turned: it goes down where it should go up",)


@pytest.mark.parametrize(
    ("prompts", "said"),
    [(True, "prompts are trained"), (False, "what tools and users say between turns is trained")],
    ids=["prompts", "replies"],
)
def test_tokens_that_nobody_sampled_are_named(tokens, prompts, said):
    where = ~tokens.trained & (tokens.flags("is_prompt") == prompts)
    verdict = said_of(stepped(tokens, tokens.advantages + 0.5 * where), tokens)
    assert verdict.findings == (said,)


def test_what_is_no_gradient_of_the_canaries_is_a_share_of_the_step(tokens):
    step = stepped(tokens, tokens.advantages)
    decay = np.random.default_rng(2).standard_normal(step.shape)
    verdict = said_of(step + decay * np.linalg.norm(step) / np.linalg.norm(decay), tokens)
    assert not verdict.exact
    assert verdict.findings[-1].startswith("71% of the step is no gradient")


def test_of_weights_that_nothing_explains_the_farthest_off_is_shown(tokens):
    rng = np.random.default_rng(3)
    weights = np.where(tokens.trained, rng.standard_normal(len(tokens.facts)), 0.0)
    (finding,) = said_of(stepped(tokens, weights), tokens).findings
    assert finding.startswith("tokens of one turn do not weigh the same; farthest off is token ")


def per(tokens, name, *numbers):
    """Advantages times a number for each group, row, …, repeated as often as there are some."""
    return tokens.advantages * np.resize(numbers, tokens.ids(name).max() + 1)[tokens.ids(name)]


def cut(tokens, kept):
    return np.where(tokens.ids("index") < kept, tokens.advantages, 0.0)


LEVELS = {
    "groups": (
        lambda tokens: per(tokens, "group", 1.0, 1.0, 1.02, 1.0),
        r"groups do not weigh the same: dropped x1, unscored x1, unequal x1\.02, condensed x1; is one .*",
    ),
    "rows": (
        lambda tokens: per(tokens, "row", 1.0, 1.0, 3.0, 1.0),
        r"rows do not weigh the same: dropped x1 x1 x3, unscored x1 x1 x1 x3, unequal .*",
    ),
    "clipped": (lambda tokens: np.clip(tokens.advantages, -0.4, 0.4), r"advantages are clipped at 0\.4"),
    "turns": (
        lambda tokens: np.where(tokens.ids("turn") == 6, 4.0, tokens.advantages),
        r"turns have other weights than their advantages; farthest off is token 1 of turn 1 of rollout 1 of "
        r"the canary 'unscored', with the advantage 0\.417 and the weight .*",
    ),
    "cut": (lambda tokens: cut(tokens, 20), r"nothing after 20 tokens of a row is trained: are they cut\?"),
    "small": (
        lambda tokens: tokens.advantages * (np.abs(tokens.advantages) > 0.1),
        r"13 of 152 sampled tokens are not in the step",
    ),
}


@pytest.mark.parametrize(("weigh", "said"), LEVELS.values(), ids=LEVELS)
def test_what_is_no_known_mistake_is_told_by_what_differs(tokens, weigh, said):
    verdict = said_of(stepped(tokens, weigh(tokens)), tokens)
    assert not verdict.exact
    (finding,) = verdict.findings
    assert re.fullmatch(said, finding)


@pytest.mark.parametrize(("by", "side"), [(1, "late"), (-1, "early")], ids=["late", "early"])
def test_credit_that_stands_a_token_aside_is_named(tokens, by, side):
    weights = np.roll(np.where(tokens.trained, tokens.advantages, 0.0), by)
    verdict = said_of(stepped(tokens, weights), tokens)
    assert verdict.findings[-1].endswith(f"masks or advantages stand a token too {side}")


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (
            lambda tokens: tokens.at(0.7),
            "log-probabilities are those of a temperature of about 0.7, and not of 1",
        ),
        (
            lambda tokens: tokens.of(tokens.model, tokens.groups, unshifted=True),
            "tokens are held against the logits at their own place, and not at the place before",
        ),
    ],
    ids=["temperature", "unshifted"],
)
def test_log_probabilities_that_are_none_of_the_policy_are_named(tokens, other, said):
    taken = other(tokens)
    assert said_of(stepped(taken, taken.advantages), tokens).findings == (said,)


def test_weight_decay_is_named_beside_another_mistake(tokens):
    said = "rows weigh 1/their trained tokens"
    step = stepped(tokens, of(tokens, said)) - 0.02 * tokens.model.head
    assert said_of(step, tokens).findings == (
        said,
        "weights decay by 0.02 of themselves: weight_decay is not 0",
    )


@pytest.mark.parametrize(
    ("name", "said"),
    [("group", "12 of 15 rows are not in the step"), ("row", "14 of 15 rows are not in the step")],
)
def test_a_step_on_a_part_of_the_batch_is_named(tokens, name, said):
    weights = np.where(tokens.ids(name) == 0, tokens.advantages, 0.0)
    (finding,) = said_of(stepped(tokens, weights), tokens).findings
    assert finding == f"{said}: is all in one?"


def test_a_part_of_the_batch_is_named_beside_a_mistake(tokens):
    said = "rows weigh 1/their trained tokens"
    weights = np.where(tokens.ids("group") < 2, of(tokens, said), 0.0)
    (finding,) = said_of(stepped(tokens, weights), tokens).findings
    assert finding == f"8 of 15 rows are not in the step: is all in one?; {said}"


def test_what_is_not_exact_always_has_a_finding(tokens):
    rng = np.random.default_rng(4)
    step = stepped(tokens, tokens.advantages * (1 + 0.02 * rng.standard_normal(len(tokens.facts))))
    verdict = said_of(step, tokens)
    assert not verdict.exact
    assert verdict.findings == ("a little is wrong everywhere: several steps, or a small penalty",)


def test_a_step_that_float32_rounds_away_is_named(tokens):
    step = stepped(tokens, tokens.advantages, 1e-7)
    verdict = said_of(step, tokens, rounding=float(np.linalg.norm(step)))
    assert (verdict.exact, len(verdict.findings)) == (False, 1)
    assert "a larger learning rate" in verdict.findings[0]


def test_a_head_that_did_not_move_is_named(tokens):
    (finding,) = said_of(np.zeros((2048, 64)), tokens).findings
    assert finding.startswith("the head did not move")


def test_numbers_that_are_not_finite_are_named(tokens):
    verdict = said_of(np.full((2048, 64), np.nan), tokens)
    assert verdict.findings == ("the step has numbers that are not finite",)
