"""The whole loop on one machine: run-api, the policy server, `turnwise serve` and the example trainer, as processes.

python run.py [--steps 40] [--gamma 0] [--out FOLDER]
"""

import argparse
import os
import socket
import subprocess
import sys
import time
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path
from statistics import mean

from turnwise.records import read_groups

HERE = Path(__file__).resolve().parent
BIN = Path(sys.executable).parent
BATCH_ROWS = 64
"""One row per turn."""


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--steps", type=int, default=40)
    options.add_argument("--lr", default="1e-3")
    options.add_argument("--gamma", default="0", help="of turn_return: what later turns count, from 0 to 1")
    options.add_argument("--out", type=Path, default=Path("serve_loop"))
    given = options.parse_args()
    out = given.out.resolve()
    if (out / "model").exists():
        sys.exit(f"{out} holds a run already; choose another --out")
    out.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    subprocess.run([sys.executable, str(HERE / "warm_start.py"), str(out / "model")], check=True)
    with ExitStack() as processes:
        name, code = loop(processes, out, given)
    if (name, code) != ("trainer", 0):
        sys.exit(f"{name} ended with {code}; see {out}/{name}.log")
    rose = report(out / "groups.jsonl")
    print(
        f"{given.steps} steps in {time.monotonic() - started:.0f} s; the groups are a record: {out}/groups.jsonl"
    )
    sys.exit(0 if rose else "versions did not rise")


def loop(processes, out, given):
    """Start all, and wait for the trainer, or for one that fails: its name and exit code."""
    api, model, vllm = free_port(), free_port(), free_port()
    checkpoints = out / "checkpoints"
    started = {}

    def start(name, command, **environ):
        log = processes.enter_context((out / f"{name}.log").open("w"))
        process = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, **environ})
        processes.callback(end, process)
        started[name] = process

    start("api", [BIN / "run-api", "--host", "127.0.0.1", "--port", str(api)])
    start("policy", [sys.executable, HERE / "policy_server.py", str(model), out / "model", checkpoints])
    wait_for(api)
    wait_for(model)
    start("serve", [
        BIN / "turnwise", "serve", f"{HERE / 'signs.py'}:Signs", "--env.credit_view", "turn_rows",
        "--env.rollout_server_url", f"http://127.0.0.1:{api}", "--env.group_size", "8",
        "--env.estimator", "turn_return", "--env.estimator_params.gamma", given.gamma, "--env.failed_score", "-2",
        "--env.score_divisor", "8", "--env.max_tokens_per_turn", "8", "--env.max_batches_offpolicy", "1",
        "--env.max_concurrent_rollouts", "8", "--env.outbox_groups", "1",
        "--openai.base_url", f"http://127.0.0.1:{model}/v1", "--openai.model_name", "tiny",
        "--openai.server_type", "sglang", "--openai.family", "chatml", "--env.tokenizer_name", out / "model",
        "--outbox", out / "outbox.sqlite", "--out", out / "groups.jsonl",
    ])  # fmt: skip
    start("trainer", [
        BIN / "atropos-grpo", "--model-name", out / "model", "--device", "cpu", "--optimizer", "adamw",
        "--lr", given.lr, "--training-steps", str(given.steps), "--batch-size", str(BATCH_ROWS),
        "--gradient-accumulation-steps", "1", "--seq-len", "1024", "--save-path", checkpoints,
        "--checkpoint-interval", "1", "--vllm-restart-interval", "1", "--vllm-port", str(vllm),
        "--atropos-url", f"http://127.0.0.1:{api}",
    ], PATH=str(out), OMP_NUM_THREADS="1")  # fmt: skip
    # Where the trainer finds no `python`, it starts no vLLM after a checkpoint: our server loads them itself.
    while True:
        for name, process in started.items():
            if process.poll() is not None and (name == "trainer" or process.returncode):
                return name, process.returncode
        time.sleep(0.1)


def report(record):
    """Print how the share of right keys went with the weights that sampled; whether versions rose."""
    shares = defaultdict(list)
    for group in read_groups(record):
        for trajectory in group.group.trajectories:
            newest = max(int(version.removeprefix("step-")) for version in trajectory.weight_versions)
            shares[newest].append(trajectory.metrics["right"])
    versions = sorted(shares)
    size = max(1, -(-len(versions) // 10))
    print("weights of step | rollouts | right keys")
    for start in range(0, len(versions), size):
        some = versions[start : start + size]
        rollouts = [share for version in some for share in shares[version]]
        print(f"{some[0]:>6} to {some[-1]:<4} | {len(rollouts):>8} | {mean(rollouts):.2f}")
    return len(versions) > 1


def end(process):
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_for(port):
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.1)


if __name__ == "__main__":
    main()
