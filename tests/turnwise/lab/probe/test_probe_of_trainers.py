"""Probes of steps that torch takes: of TRL, of the trainer of the docs, and of wrong loops."""

import importlib
import os
import re
from pathlib import Path

import pytest

from turnwise.cli.main import main
from turnwise.lab.probe.canaries import VOCABULARY
from turnwise.lab.probe.trainer_probe import probe_trainer

if not os.environ.get("TURNWISE_REQUIRE_TORCH"):
    pytest.importorskip("torch", reason="needs torch, to take the steps")
torch = importlib.import_module("torch")
transformers = importlib.import_module("transformers")
torch.set_num_threads(1)


def loaded(folder):
    return transformers.AutoModelForCausalLM.from_pretrained(folder)


def test_the_forward_pass_in_numpy_is_that_of_transformers(probe):
    token_ids = [*range(4, VOCABULARY), *range(4, VOCABULARY)]
    with torch.no_grad():
        logits = loaded(probe.model).double()(torch.tensor([token_ids])).logits[0]
    log_p = torch.log_softmax(logits, dim=-1).numpy()
    assert abs(log_p - probe.before.forward(token_ids)[1]).max() < 1e-5


def rows_of(probe):
    """Prompt, completion, mask and advantages of each row."""
    for columns in probe.columns(rows=None):
        table = zip(
            columns.prompt_ids, columns.completion_ids, columns.tool_mask, columns.advantages, strict=True
        )
        for prompt, completion, mask, advantages in table:
            yield prompt, completion, torch.tensor(mask), torch.tensor(advantages)


def log_p_of(model, prompt, completion, before=()):
    ids = [*before, *prompt, *completion]
    log_p = torch.log_softmax(model(torch.tensor([ids])).logits[0].double(), dim=-1)
    start = len(ids) - len(completion)
    return log_p[range(start - 1, len(ids) - 1), completion]


def trainer(weigh, optimizer=torch.optim.SGD, before=()):
    """A training loop that weighs the log-probabilities of completions with what `weigh` says."""

    def step(probe):
        model = loaded(probe.model)
        taker = optimizer(model.parameters(), lr=probe.lr)
        objective = 0.0
        for prompt, completion, *row in rows_of(probe):
            objective = objective + (weigh(*row) * log_p_of(model, prompt, completion, before)).sum()
        (-objective / 16).backward()
        taker.step()
        return model

    return step


WRONG = {
    "mean": (
        trainer(lambda mask, advantages: mask * advantages.sum() / mask.sum()),
        "every token of a row gets the sum of its row's advantages; rows weigh 1/their trained tokens",
    ),
    "context": (
        trainer(lambda mask, advantages: advantages, before=[5, 6, 7, 8]),
        "% of the step is not a gradient of these tokens in their contexts",
    ),
}


def test_the_policy_gradient_is_exact_whatever_it_is_divided_by():
    verdict = probe_trainer(trainer(lambda mask, advantages: advantages), lr=0.5)
    assert verdict.exact
    assert verdict.scale == "1/16 rows, 4 of every group"


@pytest.mark.parametrize(("step", "said"), WRONG.values(), ids=WRONG)
def test_a_loop_that_is_wrong_on_purpose_is_told_what_it_does(step, said):
    verdict = probe_trainer(step)
    assert not verdict.exact
    assert [finding for finding in verdict.findings if said in finding] == list(verdict.findings)


PAGE = (Path(__file__).resolve().parents[4] / "docs" / "trainers.md").read_text()


def shown_code(name):
    (code,) = re.findall(rf'^```python title="{name}"\n(.*?)^```$', PAGE, re.MULTILINE | re.DOTALL)
    return code


def test_trl_is_probed_through_the_adapter_as_the_docs_show(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    Path("my_trl.py").write_text(shown_code("my_trl.py"))
    assert main(["doctor", "trainer", "step", "my_trl.py:step"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] in PAGE.splitlines()


@pytest.mark.parametrize(("divided", "verdict"), [(True, 0), (False, 1)], ids=["as it is", "mended"])
def test_the_trainer_of_the_docs_is_told_what_the_docs_say(tmp_path, capsys, divided, verdict):
    code = shown_code("my_trainer.py")
    shown = re.findall(r"^```text\n((?:wrong|exact):.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    (tmp_path / "my_trainer.py").write_text(
        code if divided else code.replace(" / mask.sum().clamp(min=1)", "")
    )
    assert main(["doctor", "trainer", "step", f"{tmp_path}/my_trainer.py:step"]) == 1 - verdict
    said = capsys.readouterr().out
    number = r"\d+\.\d+"
    assert re.sub(number, "N", said) == re.sub(number, "N", shown[verdict])
    expected = list(map(float, re.findall(number, shown[verdict])))
    assert list(map(float, re.findall(number, said))) == pytest.approx(expected, rel=1e-3)


def adam(weigh, *, clip=0.0):
    """A loop with AdamW as people have it: weight decay, a clipped norm; it gives its optimizer."""
    kept = []

    class Clipping(torch.optim.AdamW):
        def step(self):
            if clip:
                torch.nn.utils.clip_grad_norm_(self.param_groups[0]["params"], clip)
            super().step()

    def optimizer(parameters, lr):
        kept.append(Clipping(parameters, lr=1e-3 * lr, weight_decay=0.1))
        return kept[-1]

    def step(probe):
        trainer(weigh, optimizer)(probe)
        return kept[-1]

    return step


def test_the_checkpoint_of_a_loop_with_adam_is_read_with_its_optimizer(tmp_path):
    def step(probe):
        optimizer = adam(lambda mask, advantages: advantages / mask.sum())(probe)
        loaded(probe.model).save_pretrained(tmp_path)
        torch.save(optimizer.state_dict(), tmp_path / "optimizer.pt")
        return tmp_path

    assert probe_trainer(step).findings == ("rows weigh 1/their trained tokens",)
