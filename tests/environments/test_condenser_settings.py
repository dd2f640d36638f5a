"""Condensers by settings and by class: which there are, and what is refused before anything runs."""

from dataclasses import dataclass

import pytest

from environments.config import AgentEnvConfig
from environments.record.origin import differences
from environments.rollout.context import (
    condenser_facts,
    fit_context,
    keep_last_turns,
    summarise,
    trim_tool_output,
)
from environments.run.experiment import origin_of
from environments.trajectory import Failure, StopReason
from tests.environments.talking import TASK, Talking
from tests.tables import cases
from tools.errors import ConfigError, NoModelError
from turnwise.cli.main import main


def made(own=None, **settings):
    cls = type("Condensed", (Talking,), {"condenser": own})
    return cls(AgentEnvConfig(**{"group_size": 1, "min_group_size": 1} | settings))


NAMED = {
    "one": ({"condenser": ["fit_context"], "condenser_tokens": 2048}, (fit_context(2048),)),
    "two in order": (
        {"condenser": ["trim_tool_output", "fit_context"]},
        (trim_tool_output(512), fit_context(32768 - 1024)),
    ),
    "turns": ({"condenser": ["keep_last_turns"]}, (keep_last_turns(8),)),
    "a summary": ({"condenser": ["summarise"]}, (summarise(max_tokens=24576),)),
    "a summary by turns": (
        {"condenser": ["summarise"], "condenser_turns": 6, "condenser_tokens": 99},
        (summarise(every=6, max_tokens=99),),
    ),
    "none": ({"condenser": ["none"]}, ()),
    "unset": ({}, (keep_last_turns(3),)),
}


@cases("case", NAMED)
def test_the_settings_win_over_the_class(case):
    settings, expected = NAMED[case]
    assert made(keep_last_turns(3), **settings).lifecycle.parts.condensers == expected


@pytest.mark.parametrize("several", [(), [], None], ids=["tuple", "list", "None"])
def test_a_class_may_have_no_condenser(several):
    assert made(several).lifecycle.parts.condensers == ()


def test_a_class_may_have_several():
    assert made([trim_tool_output(99), fit_context(999)]).lifecycle.parts.condensers == (
        trim_tool_output(99),
        fit_context(999),
    )


REFUSED = {
    "unknown": (["--env.condenser", "shorten"], "no condenser 'shorten'; choose from trim_tool_output"),
    "twice": (["--env.condenser", "fit_context,fit_context"], "names fit_context 2 times"),
    "none and one": (["--env.condenser", "fit_context,none"], "names none beside 1 others"),
    "nothing": (["--env.condenser="], "names nothing"),
    "no room": (
        [
            "--env.condenser",
            "fit_context",
            "--env.condenser_tokens",
            "2048",
            "--env.max_token_length",
            "2048",
        ],
        "--env.condenser_tokens 2048 leaves no room for a turn in a row of --env.max_token_length 2048",
    ),
    "too small": (
        ["--env.condenser", "fit_context", "--env.condenser_tokens", "3"],
        "--env.condenser_tokens",
    ),
    "tokens of nothing": (["--env.condenser_tokens", "99"], "--env.condenser_tokens 99 sets nothing"),
    "turns of nothing": (["--env.condenser_turns", "9"], "--env.condenser_turns 9 sets nothing"),
    "results of nothing": (["--env.condenser_tool_tokens", "99"], "choose from trim_tool_output"),
    "nobody sums up": (
        ["--env.condenser", "summarise_by_model"],
        "name its model server with --summariser.base_url",
    ),
}


@cases("case", REFUSED)
def test_what_cannot_work_is_refused_in_a_line_before_anything_runs(case, capsys, tmp_path):
    options, says = REFUSED[case]
    path = tmp_path / "r.jsonl"
    assert main(["process", "word_guess", "--out", str(path), *options]) == 2
    error = " ".join(capsys.readouterr().err.split())
    assert says in error
    assert not path.exists()


UNREAD = {
    "tokens": (
        {"condenser": ["keep_last_turns", "trim_tool_output"], "condenser_tokens": 99},
        "--env.condenser_tokens 99 sets nothing with --env.condenser keep_last_turns,trim_tool_output; "
        "it is for fit_context, summarise",
    ),
    "read by one": ({"condenser": ["fit_context", "summarise"], "condenser_tokens": 99}, ""),
    "switched off": ({"condenser": ["none"], "condenser_tokens": 99}, ""),
}


@pytest.mark.parametrize("case", UNREAD)
def test_a_setting_that_none_of_the_named_condensers_reads_is_told(case, caplog):
    settings, says = UNREAD[case]
    made(**settings)
    assert says in caplog.text
    assert bool(says) == bool(caplog.text)


def test_a_condenser_that_asks_for_a_second_model_is_refused_where_nobody_plays_it():
    with pytest.raises(NoModelError, match="'talking' has a condenser that asks a second model"):
        made(summarise(every=2, by="model"))


async def test_in_an_items_shorter_row_a_budget_is_what_leaves_room_for_a_turn():
    class Short(Talking):
        condenser = fit_context(30_000)
        says = ("word " * 20,) * 9

        def limits_for(self, item):
            return {"max_token_length": 600, "max_tokens_per_turn": 100}

    env = Short(AgentEnvConfig(group_size=1, min_group_size=1))
    (trajectory,) = (await env.rollout_group(TASK, 1)).trajectories
    assert trajectory.stop_reason is StopReason.COMPLETED
    assert len(trajectory.rows) > 1
    assert max(turn.span.start for turn in trajectory.turns) <= 500


async def test_an_opening_over_the_budget_costs_the_rollout_and_says_why():
    class Long(Talking):
        condenser = fit_context(200)

        def format_prompt(self, item):
            return "word " * 300

    (failure,) = (await Long().rollout_group(TASK, 1)).failures
    assert isinstance(failure, Failure)
    assert failure.error.startswith(
        "RolloutError: no turn was finished: context_overflow (ContextOverflow: a "
    )
    assert "cannot be made shorter, is over 200" in failure.error


@dataclass(frozen=True)
class Own:
    size: int
    name: str = "own"

    async def condense(self, history, asking):
        return history


class Plain(Own):
    def __init__(self, size):
        object.__setattr__(self, "size", size)


class Around:
    name = "around"

    def __init__(self, *inner):
        self.inner = inner
        self.itself = self

    async def condense(self, history, asking):
        return await self.inner[0].condense(history, asking)


FACTS = {
    "none": None,
    "fit 500": fit_context(500),
    "fit 600": fit_context(600),
    "keep 5": keep_last_turns(5),
    "two": (keep_last_turns(5), fit_context(500)),
    "two in another order": (fit_context(500), keep_last_turns(5)),
    "own 1": Own(1),
    "own 2": Own(2),
    "plain 1": Plain(1),
    "around plain 1": Around(Plain(1)),
    "around plain 2": Around(Plain(2)),
    "around fit 500": Around(fit_context(500)),
}


def test_condensers_of_a_class_count_in_the_fingerprint():
    facts = {
        name: str(condenser_facts(made(each).lifecycle.parts.condensers)) for name, each in FACTS.items()
    }
    assert len(set(facts.values())) == len(FACTS)
    env = made(fit_context(500))
    assert condenser_facts(env.lifecycle.parts.condensers).items() <= origin_of(env).experiment.items()


def test_a_run_with_another_condenser_is_refused_in_words_that_tell_the_two_apart():
    before, now = (origin_of(made((keep_last_turns(5), summarise(max_tokens=size)))) for size in (900, 800))

    changed = differences(before.experiment, now.experiment)

    assert changed[0] == "condenser 2 max_tokens was 900, is 800"


def test_a_condenser_is_no_list_of_lists():
    with pytest.raises(ConfigError, match="is not a condenser"):
        made([[fit_context(500)]])
