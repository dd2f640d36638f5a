"""Which settings of Atropos' example trainer (0.4.0) leave Σ A ∇log π as it is.

Two things are no settings there: it ignores `advantages`, so that the credit has to be in the scores, and it
clips the norm of a step's gradient at 1, below which a larger `--env.score_divisor` keeps it.
"""

from environments.trainers.setting_rules import Rule, Settings, refuse_broken

DEFAULTS: Settings = {
    "credit_view": "turn_rows",
    "clip_eps": 0.2,
    "weight_bridge_mode": "none",
    "vllm_restart_interval": 3,
    "lora_dropout": 0.05,
}
"""Those of its `TrainingConfig`, and the view that is served to it."""

RULES = (
    Rule(
        setting="credit_view",
        wrong=lambda settings: settings["credit_view"] not in ("turn_rows", "prefix_rows"),
        why="this trainer reads scores and ignores advantages",
        instead="use --env.credit_view turn_rows",
    ),
    Rule(
        setting="clip_eps",
        wrong=lambda settings: settings["clip_eps"] <= 0.0,
        why="it clips ratios that are 1 but for rounding",
        instead="use 0.2",
    ),
    Rule(
        setting="vllm_restart_interval",
        wrong=lambda settings: (
            settings["weight_bridge_mode"] != "shared_vllm" and settings["vllm_restart_interval"] != 1
        ),
        why="the model server keeps older weights meanwhile, whose ratios are clipped",
        instead="use 1, or weight_bridge_mode shared_vllm",
    ),
    Rule(
        setting="lora_dropout",
        wrong=lambda settings: (
            settings["weight_bridge_mode"].startswith("lora") and settings["lora_dropout"] > 0.0
        ),
        why="the step is of another network than the one that sampled",
        instead="use 0.0",
    ),
)


def refuse_inexact_example_trainer(settings: Settings) -> None:
    """Hold settings, beside their defaults, to `RULES`.

    Raises:
        ConfigError: the first that would change the step, in one line that says what to use.
    """
    refuse_broken(RULES, {**DEFAULTS, **settings})
