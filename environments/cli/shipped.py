"""The environments that come with Turnwise, named without importing them."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ShippedEnvironment:
    """Where a shipped environment lives and what it is."""

    target: str
    """`module:Class`."""
    description: str
    """One line for `turnwise list`."""


SHIPPED: Mapping[str, ShippedEnvironment] = {
    "code_debug": ShippedEnvironment(
        target="environments.code_debug_env:CodeDebugEnv",
        description="Find and fix the bug in a Python function; a reward for every turn.",
    ),
    "judged_writing": ShippedEnvironment(
        target="environments.judged_writing_env:JudgedWritingEnv",
        description="Write a short text and revise it; a judge scores every draft.",
    ),
    "long_math": ShippedEnvironment(
        target="environments.long_math_env:LongMathEnv",
        description="Audit a ledger longer than the window; what the context loses is lost.",
    ),
    "retail": ShippedEnvironment(
        target="environments.retail_env:RetailEnv",
        description="Serve a shop's customer under a policy; the database at the end decides.",
    ),
    "sales_chat": ShippedEnvironment(
        target="environments.sales_chat_env:SalesChatEnv",
        description="Sell in a chat: the customer answers, upvotes, buys or leaves; no tools.",
    ),
    "stations": ShippedEnvironment(
        target="environments.stations_env:StationsEnv",
        description="Press the right key at each sign; small enough to be learned in seconds.",
    ),
    "terminal_tasks": ShippedEnvironment(
        target="environments.terminal_tasks_env:TerminalTasksEnv",
        description="Make a file with given content in a terminal; one scalar reward.",
    ),
    "word_guess": ShippedEnvironment(
        target="environments.word_guess_env:WordGuessEnv",
        description="Guess a word of five letters; each guess is answered letter by letter.",
    ),
}
