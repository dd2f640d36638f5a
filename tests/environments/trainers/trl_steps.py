"""One step of TRL's trainer on an environment, and what it has to be; needs torch and TRL."""

import copy
import importlib.util
import os
from types import SimpleNamespace

from environments.base_env import AgentEnv
from environments.policy.rendering.chatml import EMBEDDED_TOKENIZER_DIR, ChatMLRenderer
from environments.turn_level_reward import TurnLevelRewardMixin
from turnwise.lab.probe import canaries as canary
from turnwise.lab.probe.canaries import CanaryEnv

os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"
torch, trl, transformers = map(importlib.import_module, ("torch", "trl", "transformers"))
adapter = importlib.import_module("environments.trainers.trl")
gradients = importlib.import_module("tests.environments.trainers.policy_gradient")
torch.set_num_threads(1)

HAS_PEFT = bool(os.environ.get("TURNWISE_REQUIRE_TORCH") or importlib.util.find_spec("peft"))
ROWS, GROUPS, LONGEST = 4, 2, 100
TOKENIZER = transformers.AutoTokenizer.from_pretrained(EMBEDDED_TOKENIZER_DIR)


def tiny_model(**config):
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    ids = {"bos_token_id": None, "eos_token_id": 2, "pad_token_id": 0}
    return transformers.Qwen2ForCausalLM(
        transformers.Qwen2Config(vocab_size=2048, num_key_value_heads=1, **sizes, **ids, **config)
    )


def brief_model():
    """It ends a turn after a few tokens."""
    model, stop = tiny_model(), ChatMLRenderer.embedded().stop_ids[0]
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(12):
        tokens = torch.randint(0, 2048, (8, 32))
        (-torch.log_softmax(model(tokens).logits, -1)[..., stop].mean()).backward()
        optimiser.step()
        optimiser.zero_grad()
    return model


def lora_model():
    """Only its adapter is trained, whose two factors both have a gradient."""
    peft = importlib.import_module("peft")
    config = peft.LoraConfig(r=4, init_lora_weights=False, target_modules=["q_proj", "v_proj", "up_proj"])
    return peft.get_peft_model(brief_model(), config)


class Watched(adapter.TurnwiseGRPOTrainer):
    """Keeps what the loss was given."""

    def _compute_loss(self, model, inputs):
        self.seen = [*getattr(self, "seen", ()), {name: value.clone() for name, value in inputs.items()}]
        return super()._compute_loss(model, inputs)


class Gradient(transformers.TrainerCallback):
    """Keeps the whole gradient of each step."""

    def __init__(self):
        self.steps, self.is_sharded = [], False

    def on_pre_optimizer_step(self, args, state, control, model=None, **_):
        grads = [each.grad for each in model.parameters() if each.requires_grad]
        self.is_sharded = all(hasattr(each, "full_tensor") for each in grads)
        whole = [each.full_tensor() if self.is_sharded else each for each in grads]
        self.steps.append(torch.cat([each.flatten().double() for each in whole]))


def config_of(folder, **settings):
    given = {
        "gradient_accumulation_steps": 2,
        "loss_type": "dr_grpo",
        "num_generations": ROWS,
        "max_completion_length": LONGEST,
        "max_grad_norm": 0.0,
        "save_strategy": "no",
        "logging_steps": 1,
        "bf16": False,
        "learning_rate": 0.1,
        **settings,
    }
    given.setdefault("per_device_train_batch_size", ROWS * GROUPS // given["gradient_accumulation_steps"])
    return trl.GRPOConfig(
        output_dir=str(folder), report_to=[], use_cpu=True, disable_tqdm=True, optim="sgd", **given
    )


def run(env, folder, *, steps=1, trainer=Watched, model=tiny_model, resume=None, exact=None, **settings):
    """Steps of TRL's: the trainer, its first gradient, and the model before."""
    args = config_of(folder, max_steps=steps, scale_rewards="none", **settings)
    begun, gradient = model(), Gradient()
    before = copy.deepcopy(begun)
    with adapter.Rollouts(env) as rollouts:
        trained = trainer(
            begun, args, rollouts, exact=exact, processing_class=TOKENIZER, callbacks=[gradient]
        )
        trained.train(resume_from_checkpoint=resume)
    return SimpleNamespace(
        trainer=trained,
        gradient=gradient.steps[0],
        gradients=gradient.steps,
        is_sharded=gradient.is_sharded,
        before=before,
        rollouts=rollouts,
    )


def only(name):
    """A canary alone."""
    return type("Only", (CanaryEnv,), {"groups": {name: canary.CANARIES[name]}})


class Talk(TurnLevelRewardMixin, AgentEnv):
    """Three turns, whatever is said."""

    name = "talk"
    sandbox = "none"

    def load_items(self):
        return [{"id": f"item{index}"} for index in range(GROUPS)]

    def format_prompt(self, item):
        return f"Say something about {item['id']}."

    def respond(self, item, turn, ctx):
        return "And then?" if turn.index < 2 else None

    def score_turn(self, item, turn, ctx):
        return float(len(turn.message.content) % 5)


def played(policy):
    """Two items of it, by the model."""
    return Talk(Talk.env_config_cls(max_tokens_per_turn=20), policy=policy)


def constant(loss, seen):
    """What the loss divides the whole sum by."""
    tokens = sum(float((each["completion_mask"] * each["tool_mask"]).sum()) for each in seen)
    rows = sum(len(each["advantages"]) for each in seen)
    by_tokens = {"dapo": tokens, "bnpo": tokens, "vespo": tokens, "cispo": tokens / 0.2}
    return {"dr_grpo": rows * LONGEST, "luspo": rows, **by_tokens}[loss]


def compared(done, loss):
    """Cosine and norm ratio of TRL's gradient to -Σ A ∇log π over the loss's constant."""
    exact = -gradients.policy_gradient(done.before, done.rollouts.groups) / constant(loss, done.trainer.seen)
    return gradients.measured(done.gradient, exact)
