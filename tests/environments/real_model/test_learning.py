"""Small transformers learn from Turnwise's credit; needs torch."""

import os
from statistics import fmean

import pytest

if not os.environ.get("TURNWISE_REQUIRE_TORCH"):
    pytest.importorskip("torch", reason="needs torch, for a real model")
import torch

from tests.benchmarks.learning_docs import stored
from tests.benchmarks.learning_table import GAMES
from tests.benchmarks.noisy_turns import RIGHT, Game, Run, learn, play
from tests.benchmarks.stacked_transformers import first_weights, logits_of

NOISY = "16 turns, noise 1"
SEEDS, STEPS = (20, 21), 20


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_on_noisy_independent_turns_no_discounted_future_learns_faster_than_all_of_it():
    rates = stored()["rates"][NOISY]
    runs = [Run(arm=arm, rate=rates[arm], seed=seed) for arm in ("gamma=0", "gamma=1") for seed in SEEDS]
    ends = {run: curve[-1] for run, curve in learn(GAMES[NOISY], runs, target=2.0, cap=STEPS).items()}
    own, all_of_it = ([ends[run] for run in runs if run.arm == arm] for arm in ("gamma=0", "gamma=1"))
    assert fmean(own) > fmean(all_of_it) + 0.2


def test_a_run_learns_the_same_alone_and_beside_others():
    game = Game(turns=4, noise=1.0, kind="stop", lessons=20)
    runs = [Run(arm=arm, rate=0.004, seed=3) for arm in ("gamma=0", "scalar", "control")]
    together = learn(game, runs, target=2.0, cap=6)
    alone = learn(game, runs[1:2], target=2.0, cap=6)
    assert alone[runs[1]] == pytest.approx(together[runs[1]], abs=1e-4)


def test_what_was_sampled_with_the_cache_has_the_chances_of_a_whole_pass():
    weights = first_weights((1, 2), 8)
    signs, draws = torch.randint(8, (2, 5, 4)), torch.rand(2, 5, 4)
    ids, *_, chances = play(weights, signs, draws, ends_when_wrong=False)
    whole = logits_of(weights, ids[..., :-1])[:, :, 0::2].softmax(-1)
    right = RIGHT[signs]
    assert torch.allclose(whole.gather(3, right[..., None])[..., 0], chances, atol=1e-5)
