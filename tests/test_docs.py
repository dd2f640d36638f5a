"""Every code block of the README and the docs runs."""

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = [
    ROOT / "README.md",
    *sorted(page for page in (ROOT / "docs").rglob("*.md") if page.parent.name != "reference"),
    *sorted(ROOT.glob("environments/*/README.md")),
]
# These set up or test the whole repository, which is what runs this very test.
NOT_INSIDE_A_TEST = re.compile(r"^(git clone|cd turnwise|make (test|check))\b")
BLOCK = re.compile(r'^```(\w+)(?: title="(\S+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)
FENCE = re.compile(r'^```(\w+(?: title="\S+")?)?$')


@dataclass(frozen=True)
class Block:
    """A fenced block: ```language [title="file name"]."""

    page: Path
    language: str
    filename: str | None
    text: str


def blocks_of(page):
    return [Block(page, *match.groups()) for match in BLOCK.finditer(page.read_text())]


def test_every_block_names_its_language():
    for page in PAGES:
        fences = [line for line in page.read_text().splitlines() if line.startswith("```")]
        assert all(map(FENCE.match, fences)), f'{page.name}: ```language title="file.py", and nothing else'
        assert all(line != "```" for line in fences[::2]), f"{page.name}: a block that would not be run"


def test_every_test_that_a_page_names_exists():
    named = {name for page in PAGES for name in re.findall(r"`(tests/[\w/]+\.py)`", page.read_text())}
    assert named
    assert [name for name in named if not (ROOT / name).exists()] == []


@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_blocks_of_a_page_run_in_order(page, tmp_path):
    """Python blocks run as files, named ones are kept; bash blocks run where those files lie."""
    for name in ("Makefile", "pyproject.toml", "requirements", "docs"):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / ".venv").symlink_to(sys.prefix)
    environment = {**os.environ, "PATH": f"{Path(sys.prefix) / 'bin'}:{os.environ['PATH']}", "COLUMNS": "120"}
    for number, block in enumerate(blocks_of(page)):
        if block.language == "python":
            script = tmp_path / (block.filename or f"block_{number}.py")
            script.write_text(block.text)
            # A named block is a file that later blocks run: here its definitions must work.
            name = "block" if block.filename else "__main__"
            command = [
                sys.executable,
                "-c",
                f"import runpy; runpy.run_path({str(script)!r}, run_name={name!r})",
            ]
        elif block.language == "bash":
            lines = [line for line in block.text.splitlines() if not NOT_INSIDE_A_TEST.match(line)]
            if page.name != "README.md":
                lines = [line for line in lines if line != "make demo"]  # the README runs it
            # What runs this test is set up already; make must not install into it from here.
            script = "\n".join(lines).replace("make demo", "make -o .venv/.run-ready demo")
            command = [shutil.which("bash"), "-euc", script]
        else:
            continue
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, (
            f"{page.name}, block {number}:\n{block.text}\n{done.stdout}\n{done.stderr}"
        )
