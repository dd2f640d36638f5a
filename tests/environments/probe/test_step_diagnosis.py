"""What is said of a step, made here of known parts."""

import numpy as np
import pytest

from environments.probe.known_mistakes import known_mistakes
from environments.probe.step_diagnosis import diagnose
from tools.errors import ConfigError

SCALES = {"the sum": 1.0, "1/33 rows": 1 / 33}


def stepped(tokens, weights, scale=1 / 33):
    """As a trainer saves it: the sum of two float32, less one of them."""
    before = np.random.default_rng(1).standard_normal((2048, 64)).astype(np.float32)
    after = before + (scale * tokens.gradient(weights)).astype(np.float32)
    return after.astype(np.float64) - before


def only(*said):
    return lambda mistake: mistake.sentences == said


def of(tokens, *said):
    return next(filter(only(*said), known_mistakes(tokens))).weights


def test_the_policy_gradient_is_exact_on_a_scale_that_is_named(tokens):
    verdict = diagnose(stepped(tokens, tokens.advantages), tokens, SCALES)
    assert verdict.exact
    assert verdict.scale == "1/33 rows"
    assert verdict.findings == ()


def test_a_scale_that_nobody_knows_is_a_number(tokens):
    verdict = diagnose(stepped(tokens, tokens.advantages, 0.4), tokens, SCALES)
    assert (verdict.exact, verdict.scale) == (True, None)
    assert verdict.norm_ratio == pytest.approx(0.4, rel=1e-5)


def test_every_known_mistake_alone_is_named(tokens):
    named = {}
    for mistake in known_mistakes(tokens):
        if len(mistake.sentences) == 1:
            named[mistake.sentences[0]] = diagnose(stepped(tokens, mistake.weights), tokens, SCALES)
    assert len(named) > 20
    assert {said: verdict.findings for said, verdict in named.items()} == {said: (said,) for said in named}
    assert not any(verdict.exact for verdict in named.values())


def test_two_mistakes_at_once_are_both_named(tokens):
    said = (
        "turns weigh 1/their own length: a turn of L tokens counts as one of 1 token",
        "negative advantages are ignored",
    )
    assert diagnose(stepped(tokens, of(tokens, *said)), tokens, SCALES).findings == ("; ".join(said),)


def test_a_step_downhill_is_named(tokens):
    verdict = diagnose(stepped(tokens, -tokens.advantages), tokens, SCALES)
    assert verdict.cosine == pytest.approx(-1.0, abs=1e-6)
    assert verdict.findings == ("the sign is turned: it goes down where it should go up",)


@pytest.mark.parametrize(
    ("prompts", "said"),
    [(True, "prompts are trained"), (False, "what tools and users say between turns is trained")],
    ids=["prompts", "replies"],
)
def test_tokens_that_nobody_sampled_are_named(tokens, prompts, said):
    where = ~tokens.trained & (tokens.flags("is_prompt") == prompts)
    verdict = diagnose(stepped(tokens, tokens.advantages + 0.5 * where), tokens, SCALES)
    assert verdict.findings == (said,)


def test_what_is_no_gradient_of_the_canaries_is_a_share_of_the_step(tokens):
    step = stepped(tokens, tokens.advantages)
    decay = np.random.default_rng(2).standard_normal(step.shape)
    verdict = diagnose(step + decay * np.linalg.norm(step) / np.linalg.norm(decay), tokens, SCALES)
    assert not verdict.exact
    assert verdict.findings[-1].startswith("71% of the step is no gradient")


def test_weights_that_no_mistake_explains_are_told_with_the_nearest(tokens):
    rng = np.random.default_rng(3)
    weights = np.where(tokens.trained, rng.standard_normal(len(tokens.facts)), 0.0)
    (finding,) = diagnose(stepped(tokens, weights), tokens, SCALES).findings
    assert finding.startswith("no known mistake explains what the tokens weigh; nearest (0.")


@pytest.mark.parametrize(
    ("name", "said"),
    [("group", "12 of 15 rows are not in the step"), ("row", "14 of 15 rows are not in the step")],
)
def test_a_step_on_a_part_of_the_batch_is_named(tokens, name, said):
    weights = np.where(tokens.ids(name) == 0, tokens.advantages, 0.0)
    (finding,) = diagnose(stepped(tokens, weights), tokens, SCALES).findings
    assert finding == f"{said}: is all in one?"


def test_a_part_of_the_batch_is_named_beside_a_mistake(tokens):
    said = "rows weigh 1/their trained tokens"
    weights = np.where(tokens.ids("group") < 2, of(tokens, said), 0.0)
    (finding,) = diagnose(stepped(tokens, weights), tokens, SCALES).findings
    assert finding == f"8 of 15 rows are not in the step: is all in one?; {said}"


def test_what_is_not_exact_always_has_a_finding(tokens):
    rng = np.random.default_rng(4)
    step = stepped(tokens, tokens.advantages * (1 + 0.02 * rng.standard_normal(len(tokens.facts))))
    verdict = diagnose(step, tokens, SCALES)
    assert not verdict.exact
    assert verdict.findings == ("a little is wrong everywhere: several steps, or a small penalty",)


def test_a_step_that_float32_rounds_away_is_named(tokens):
    step = stepped(tokens, tokens.advantages, 1e-7)
    verdict = diagnose(step, tokens, SCALES, rounding=float(np.linalg.norm(step)))
    assert (verdict.exact, len(verdict.findings)) == (False, 1)
    assert "a larger learning rate" in verdict.findings[0]


def test_a_head_that_did_not_move_is_named(tokens):
    (finding,) = diagnose(np.zeros((2048, 64)), tokens, SCALES).findings
    assert finding.startswith("the head did not move")


def test_numbers_that_are_not_finite_are_named(tokens):
    verdict = diagnose(np.full((2048, 64), np.nan), tokens, SCALES)
    assert verdict.findings == ("the step has numbers that are not finite",)


def test_a_step_of_adam_is_refused_since_its_signs_alone_are_left(tokens):
    with pytest.raises(ConfigError, match=r"a step of Adam.*plain SGD"):
        diagnose(0.001 * np.sign(tokens.gradient(tokens.advantages)), tokens, SCALES)
