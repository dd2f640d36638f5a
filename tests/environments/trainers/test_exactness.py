"""Each trainer's own code takes the step Σ A ∇log π, with the advantages of the wire; needs the trainers.

A row of the table is a module that runs one trainer's code; TRL, which is a whole training loop, has its own
file. `advantages_in_loss` pairs what a trainer's loss gets with what the wire says; `steps` and
`credit_and_step` give a step, the policy gradient and what the loss divides by.
"""

import importlib

import pytest

from tests.environments.trainers.groups import ONE_ROW, every_group

ADAPTERS = ("verl", "skyrl", "tinker", "verifiers", "example_trainer")
REGISTRIES = ("verl", "skyrl", "tinker")


@pytest.fixture
def trainer(request):
    module = importlib.import_module(f"tests.environments.trainers.test_{request.param}")
    # Where the trainer is missing, pytest's collection leaves a module that was read up to its skip.
    return module if hasattr(module, "advantages_in_loss") else importlib.reload(module)


@pytest.fixture
def reference(trainer):
    return importlib.import_module("tests.environments.trainers.policy_gradient")


every_adapter = pytest.mark.parametrize("trainer", ADAPTERS, indirect=True)


@every_adapter
@every_group
def test_the_advantages_in_the_loss_are_those_of_the_wire(trainer, credited):
    for given, wanted in trainer.advantages_in_loss(credited):
        assert given == pytest.approx(wanted, abs=1e-6)


@every_adapter
@every_group
def test_the_step_is_the_policy_gradient(trainer, reference, credited):
    for step, expected, constant in trainer.steps(credited):
        assert reference.measured(step, expected, constant) == reference.EXACT


@pytest.mark.parametrize("trainer", [*REGISTRIES, "verifiers"], indirect=True)
def test_credit_in_a_trainers_registry_is_that_computed_by_hand(trainer):
    # Returns are 1.5, 0.5 · 3, 3, 1 · 0.25; the third turn of the second has no peer.
    assert trainer.credit_by_hand() == [[-0.125, -2.5], [2.125, 2.5, 1.0], [-2.0]]
    assert trainer.credit_by_hand(gamma=0.5)[1][0] == 0.5 * (2.0 + 0.5) - (1.25 + 0.25) / 2


@pytest.mark.parametrize("trainer", REGISTRIES, indirect=True)
@pytest.mark.parametrize("credited", ONE_ROW.values(), ids=ONE_ROW)
def test_credit_in_a_trainers_registry_and_its_step_are_those_of_the_adapter(trainer, reference, credited):
    pairs, step = trainer.credit_and_step(credited)
    for given, wanted in pairs:
        assert given == pytest.approx(wanted, abs=1e-6)
    assert reference.measured(*step) == reference.EXACT
