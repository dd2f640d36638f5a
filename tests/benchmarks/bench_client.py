"""CPU per model call: ours, its floor and the `openai` client, against one server whose CPU is not counted.

    python -m tests.benchmarks.bench_client [--calls 3000] [--prompt-tokens 600] [--sampled-tokens 64]

Each figure is `process_time` of a client's process per call, after all connections are open. The least of
`--repeats` runs is shown. Aims: chat at most 3 times the floor, a quarter of `openai`; tokens at most twice
their floor; 512 in flight at most 1.3 times 64.
"""

import argparse
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

from tests.benchmarks.client_loops import token_loop

IN_FLIGHT = (64, 512, 1000)
LOOPS = Path(__file__).with_name("client_loops.py")


@contextmanager
def canned_server(*options):
    """Its base URL."""
    command = [sys.executable, "-m", "tests.benchmarks.canned_server", *map(str, options)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            yield server.stdout.readline().strip()
        finally:
            server.kill()


def cost_ms(client, url, in_flight, options):
    """Milliseconds per call, the least of some runs, or why there are none."""
    command = [sys.executable, str(LOOPS), client, url, str(in_flight), str(options.calls)]
    costs, problem = [], ""
    for _ in range(options.repeats):
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=options.limit_s, check=True
            )
            costs.append(float(done.stdout.split()[-1]))
        except subprocess.TimeoutExpired:
            return f"not within {options.limit_s:.0f} s"
        except subprocess.CalledProcessError as error:
            problem = (error.stderr.strip().splitlines() or ["no output"])[-1][:120]
    return min(costs, default=problem)


def ratios(costs, base):
    """How many times the costs of another client, for each number in flight."""
    pairs = zip(costs, base, strict=True)
    return [one / other for one, other in pairs if isinstance(one, float) and isinstance(other, float)]


def main() -> None:
    """Measure every client and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=3000)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--limit-s", type=float, default=300, help="wall clock of each run")
    parser.add_argument("--prompt-tokens", type=int, default=600)
    parser.add_argument("--sampled-tokens", type=int, default=64)
    parser.add_argument("--only", nargs="*", help="clients; default: all")
    options = parser.parse_args()
    names = options.only or ("floor", "chat", "token_floor", "tokens", "openai")
    sampled_ids = ",".join(map(str, token_loop()[2]))
    sizes = ("--prompt-tokens", options.prompt_tokens, "--sampled-tokens", options.sampled_tokens)
    costs = {}
    with canned_server(*sizes, "--sampled-ids", sampled_ids) as url:
        print(f"{'ms of CPU per call':18}" + "".join(f"{count:>9}" for count in IN_FLIGHT))
        for name in names:
            row = [cost_ms(name, url, count, options) for count in IN_FLIGHT]
            costs[name] = row
            shown = "".join(f"{each:9.3f}" if isinstance(each, float) else f"  {each}" for each in row)
            base = {"chat": "floor", "tokens": "token_floor"}.get(name, "chat")
            times = ratios(row, costs[base]) if base in costs and name not in ("floor", "token_floor") else []
            of = f"   times {base}:" + "".join(f" {each:.2f}" for each in times) if times else ""
            print(f"{name:18}{shown}{of}", flush=True)


if __name__ == "__main__":
    main()
