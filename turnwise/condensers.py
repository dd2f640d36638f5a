"""Condensers: they shorten the conversation that the model sees."""

from turnwise.own_packages import refuse_foreign_packages

refuse_foreign_packages()

from environments.rollout.context import (
    Asking,
    Condenser,
    Entry,
    History,
    fit_context,
    keep_last_turns,
    summarise,
    trim_tool_output,
)

__all__ = [
    "Asking",
    "Condenser",
    "Entry",
    "History",
    "fit_context",
    "keep_last_turns",
    "summarise",
    "trim_tool_output",
]
