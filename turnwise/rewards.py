"""Reward functions, checkers of answers and programs, rubrics, and rewards relative to siblings."""

from turnwise.own_packages import refuse_foreign_packages

refuse_foreign_packages()

from environments.rewards.judge import quoted
from environments.rewards.math_checker import MathChecker
from environments.rewards.rubric import (
    Rubric,
    context_efficiency,
    length_penalty,
    longest_context,
    novelty_rewards,
    pairwise_rewards,
    rank_rewards,
    sampled_tokens,
    turn_cost,
)
from environments.rewards.text_format import (
    boxed,
    code_block,
    exact_match,
    has_tags,
    has_text,
    numeric_match,
    tagged,
)
from environments.rewards.verdict.cases import CaseReport, function_cases, program_cases

__all__ = [
    "CaseReport",
    "MathChecker",
    "Rubric",
    "boxed",
    "code_block",
    "context_efficiency",
    "exact_match",
    "function_cases",
    "has_tags",
    "has_text",
    "length_penalty",
    "longest_context",
    "novelty_rewards",
    "numeric_match",
    "pairwise_rewards",
    "program_cases",
    "quoted",
    "rank_rewards",
    "sampled_tokens",
    "tagged",
    "turn_cost",
]
