"""TRL with OpenEnv: the reward of each `step` is the reward of its turn. For TRL 1.16.

openenv is not installed here: a client is what has `reset` and `step` and returns its published `StepResult`
(observation, reward, done). Train with `environments.trainers.trl_credit`:
`TurnCreditGRPOTrainer(…, rollout_func=lambda prompts, trainer: play(prompts, trainer, Client))`.
"""

import random
from collections import defaultdict

from environments.trainers.in_process_policy import Wanted
from environments.trainers.trl_sampling import CachedSampler


def play(prompts, trainer, client, max_tokens=8):
    """Return the columns of one rollout a prompt; `client()` connects to an environment."""
    tokenizer, columns = trainer.processing_class, defaultdict(list)
    sample = CachedSampler(trainer.model, [tokenizer.eos_token_id])
    for number, prompt in enumerate(prompts):
        env, draws = client(), random.Random(f"{trainer.state.global_step}:{number}")
        result, rewards, ids, logprobs, mask = env.reset(), [], [], [], []
        begun = tokenizer.encode(f"{prompt}\n{result.observation}\n")
        while not result.done:
            (said,) = sample([Wanted(prompt_ids=[*begun, *ids], max_tokens=max_tokens, draws=draws)])
            result = env.step(tokenizer.decode(said.token_ids, skip_special_tokens=True))
            seen = tokenizer.encode(f"\n{result.observation}\n")
            ids, rewards = [*ids, *said.token_ids, *seen], [*rewards, result.reward]
            logprobs += [*said.logprobs, *[0.0] * len(seen)]
            mask += [*[1] * len(said.token_ids), *[0] * len(seen)]
        row = {"prompt_ids": begun, "completion_ids": ids, "logprobs": logprobs, "env_mask": mask}
        for name, value in {**row, "turn_rewards": rewards}.items():
            columns[name].append(value)
    return dict(columns)
