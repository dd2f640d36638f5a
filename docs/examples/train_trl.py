"""Train a model on an environment with TRL, each token with the advantage of its turn. Copy this.

python train_trl.py Qwen/Qwen3-0.6B --steps 100
"""

import argparse
from functools import partial

import torch
from trl import GRPOConfig

from environments.shipped.stations.env import StationsEnv  # your environment
from environments.trainers.trl import Rollouts, TurnwiseGRPOTrainer


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model", help="a folder, or a Hugging Face name")
    parser.add_argument("--family", help="the model's chat format, where its name does not tell")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--out", default="trained")
    given = parser.parse_args()
    config = StationsEnv.env_config_cls(max_tokens_per_turn=128, max_token_length=4096)
    args = GRPOConfig(
        output_dir=given.out,
        max_steps=given.steps,
        num_generations=8,  # rollouts of an item
        per_device_train_batch_size=8,
        gradient_accumulation_steps=4,  # so 4 items a step
        learning_rate=1e-6,
        loss_type="dapo",
        scale_rewards="none",
        report_to=[],
        use_cpu=not torch.cuda.is_available(),
        bf16=torch.cuda.is_available(),
    )
    env = partial(StationsEnv, config)
    with Rollouts(env, tokenizer=given.model, family=given.family) as rollouts:
        trainer = TurnwiseGRPOTrainer(given.model, args, rollouts)
        trainer.train()
        trainer.save_model(given.out)
    print(dict(rollouts.counts))


if __name__ == "__main__":
    main()
