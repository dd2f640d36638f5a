"""`task.yaml` of Terminal-Bench 1: fields as a table, solution, and parsers of test output.

Source: the package `terminal-bench` 0.2.18.
"""

import re
from typing import Literal

from pydantic import BaseModel, Field

from environments.shipped.harbor_tasks.compose_file import read_yaml
from environments.shipped.harbor_tasks.task_toml import (
    AgentTable,
    Seconds,
    TaskTable,
    VerifierTable,
    validate,
)
from tools.errors import DatasetError

Parser = Literal["pytest", "swebench", "swelancer", "mlebench", "sweperf"]
_SUMMARY = re.compile(r"^=+ short test summary info =+$", re.MULTILINE | re.IGNORECASE)
_STATUS = re.compile(r"^(PASSED|SKIPPED|XFAIL|FAILED|ERROR|XPASS)\b", re.MULTILINE)
_MARKED = re.compile(
    r"(?:SWEBench|SWE-Perf|MLEBench) results starts here\s*(.*?)\s*\S+ results ends here", re.DOTALL
)
_LANCER = re.compile(r"swe lancer (success|failure)", re.IGNORECASE)
_COLOURS = re.compile(r"\x1b\[[0-9;]*m|\r")
_PASSED = ("PASSED", "SKIPPED", "XFAIL", "ALL TESTS PASSED", "SUCCESS")


class Description(BaseModel):
    key: str = "base"
    description: str


class TaskYaml(BaseModel):
    instruction: str | None = None
    descriptions: list[Description] = []
    """Several wordings of the instruction, which the oldest tasks have instead of one."""
    parser_name: Parser = "pytest"
    max_agent_timeout_sec: Seconds = 360.0
    max_test_timeout_sec: Seconds = 60.0

    @property
    def text(self) -> str:
        by_key = {each.key: each.description for each in reversed(self.descriptions)}
        return self.instruction or by_key.get("base") or next(iter(by_key.values()), "")

    @property
    def table(self) -> TaskTable:
        verifier = VerifierTable(timeout_sec=self.max_test_timeout_sec, env={"TEST_DIR": "/tests"})
        return TaskTable(agent=AgentTable(timeout_sec=self.max_agent_timeout_sec), verifier=verifier)


class Keystrokes(BaseModel):
    command: str
    append_enter: bool = True
    block: bool = False


class SolutionYaml(BaseModel):
    commands: list[Keystrokes] = Field(min_length=1)


def read_task_yaml(text: str) -> TaskYaml:
    return validate(TaskYaml, read_yaml(text, file="task.yaml"), file="task.yaml")


def read_solution(text: str) -> str | None:
    """Return the shell commands of `solution.yaml`, or None if it sends keys to a running program."""
    try:
        values = {"commands": read_yaml(text, file="solution.yaml")}
        commands = validate(SolutionYaml, values, file="solution.yaml").commands
    except DatasetError:
        return None  # only `check` needs it
    types = any(not (each.append_enter and each.block) for each in commands)
    return None if types else "\n".join(each.command for each in commands)


def parse_tests(parser: Parser, output: str) -> float | None:
    """Return 1 if all tests passed, 0 if one did not, and None if the output does not say."""
    output = _COLOURS.sub("", output)
    if parser == "pytest":
        *_, last = _SUMMARY.split(output)
        found = _STATUS.findall(last) if _SUMMARY.search(output) else []
    else:
        found = (_LANCER if parser == "swelancer" else _MARKED).findall(output)
    return float(all(each.upper() in _PASSED for each in found)) if found else None
