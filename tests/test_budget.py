"""The size of the project is held to the table of `docs/architecture.md`; who raises a figure states why."""

import re
from pathlib import Path

import turnwise
from environments.cli.main import COMMANDS
from environments.config import AgentEnvConfig

ROOT = Path(__file__).resolve().parent.parent


def sources(*folders):
    return [path for folder in folders for path in (ROOT / folder).rglob("*.py")]


def lines(folder):
    return sum(len(path.read_text().splitlines()) for path in sources(folder))


def budgets():
    """By name, the figure and why it is that large."""
    table = (ROOT / "docs/architecture.md").read_text().partition("## Budget")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| ([^|]+) \| ([\d,]+) \| ([^|]*) \|$", table, re.MULTILINE)
    return {name: (int(figure.replace(",", "")), why.strip()) for name, figure, why in rows}


def counted():
    return {
        "Python files of `environments/` and `tools/`": len(sources("environments", "tools")),
        "lines of Python in `environments/`": lines("environments"),
        "lines of Python in `tools/`": lines("tools"),
        "lines of Python in `tests/`": lines("tests"),
        "commands": len(COMMANDS),
        "settings of an environment": len(AgentEnvConfig.model_fields),
        "public names of `turnwise`": len(turnwise.__all__),
    }


def test_the_project_is_no_larger_than_its_budget():
    budget = budgets()
    assert list(budget) == list(counted())
    assert {name: count for name, count in counted().items() if count > budget[name][0]} == {}


def test_each_budget_has_a_reason():
    assert [name for name, (_, why) in budgets().items() if not why] == []
