"""Commands on the environments of `plain_env`, as real processes."""

import subprocess
from pathlib import Path

from tests.environments.serve.loopback import TURNWISE, without_torch

ENVS = Path(__file__).with_name("plain_env.py")


def process(env, folder, *options):
    command = [TURNWISE, "process", f"{ENVS}:{env}", "--out", str(folder / "record.jsonl")]
    return [*command, "--env.group_size", "2", *options]


def evaluate(env, folder, *options):
    return [TURNWISE, "evaluate", f"{ENVS}:{env}", "--out", str(folder / "evaluation"), *options]


def run(command, **options):
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "env": without_torch()} | options
    return subprocess.run(command, text=True, timeout=280, check=False, **options)


def recorded(folder):
    return len((folder / "record.jsonl").read_text().splitlines())
