"""Which settings of tinker-cookbook's `rl.train.Config` (0.6.1) leave Σ A ∇log π as it is."""

from environments.trainers.setting_rules import Rule, Settings, refuse_inexact

EXACT_LOSSES = ("importance_sampling", "ppo", "cispo")
"""They add up tokens, and one without an advantage adds nothing."""

DEFAULTS: Settings = {"loss_fn": "importance_sampling", "kl_penalty_coef": 0.0, "async_config": None}

_LOSS_PROBLEMS = {
    "dro": "its penalty pulls at every token of a row, those of the prompt and of tools included",
    "gspo": "its ratio is one of a whole sequence, so that turns share their advantages",
    "stable_reinforce": "it wants each token's Tinker sequence id, which only Tinker's own sampling gives",
}

RULES = (
    Rule(
        setting="async_config",
        wrong=lambda settings: settings["async_config"] is not None,
        why="its rollouts come from older weights, and it trains with a loss of its own",
        instead="leave it out",
    ),
    *(
        Rule(
            setting="loss_fn",
            wrong=lambda settings, name=name: settings["loss_fn"] == name,
            why=why,
            instead='use "importance_sampling"',
        )
        for name, why in _LOSS_PROBLEMS.items()
    ),
    Rule(
        setting="loss_fn",
        wrong=lambda settings: settings["loss_fn"] not in EXACT_LOSSES,
        why="it is no loss that adds up advantages",
        instead='use "importance_sampling"',
    ),
    Rule(
        setting="kl_penalty_coef",
        wrong=lambda settings: settings["kl_penalty_coef"] != 0.0,
        why="it is added to the advantages before the loss",
        instead="use 0.0",
    ),
)


def refuse_inexact_tinker(settings: Settings) -> None:
    """Hold settings, beside their defaults, to `RULES`.

    Raises:
        ConfigError: the first that would change the step, in one line that says what to use.
    """
    refuse_inexact(RULES, {**DEFAULTS, **settings})
