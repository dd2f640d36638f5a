"""CPU per model call: ours, its floor and its peers, all against one server whose CPU is not counted.

    python -m tests.benchmarks.bench_client [--calls 3000] [--prompt-tokens 600] [--sampled-tokens 64]
        [--peer verifiers=/tmp/peers/verifiers/bin/python] [--peer inspect=/tmp/peers/inspect/bin/python]

Each figure is `process_time` of a client's process per call, after all connections are open. The least of
`--repeats` runs is shown. Aims: chat at most 3 times the floor, a quarter of every peer; tokens at most twice
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


def cost_ms(python, client, url, in_flight, calls):
    """Milliseconds per call, or why there are none."""
    command = [python, str(LOOPS), client, url, str(in_flight), str(calls)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False, cwd=Path.cwd())
    if done.returncode or not done.stdout:
        return (done.stderr.strip().splitlines() or ["no output"])[-1][:120]
    return float(done.stdout.split()[-1])


def main() -> None:
    """Measure every client and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=3000)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--prompt-tokens", type=int, default=600)
    parser.add_argument("--sampled-tokens", type=int, default=64)
    parser.add_argument("--only", nargs="*", help="clients; default: all")
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=PYTHON")
    options = parser.parse_args()
    pythons = dict.fromkeys(("floor", "chat", "token_floor", "tokens", "openai", "atropos"), sys.executable)
    pythons |= dict(peer.split("=", 1) for peer in options.peer)
    for missing in {"verifiers", "inspect"} - set(pythons):
        print(f"{missing}: skipped, no --peer {missing}=PYTHON")
    sampled_ids = ",".join(map(str, token_loop()[2]))
    sizes = ("--prompt-tokens", options.prompt_tokens, "--sampled-tokens", options.sampled_tokens)
    costs = {}
    with canned_server(*sizes, "--sampled-ids", sampled_ids) as url:
        print(
            f"{'ms of CPU per call':18}" + "".join(f"{count:>9}" for count in IN_FLIGHT) + "    floors at 64"
        )
        for name in options.only or pythons:
            row = []
            for count in IN_FLIGHT:
                tries = [
                    cost_ms(pythons[name], name, url, count, options.calls) for _ in range(options.repeats)
                ]
                row.append(min((each for each in tries if isinstance(each, float)), default=tries[0]))
            costs[name] = row
            floor = costs.get("token_floor" if name == "tokens" else "floor", [None])[0]
            ratio = (
                f"{row[0] / floor:17.2f}" if isinstance(floor, float) and isinstance(row[0], float) else ""
            )
            shown = "".join(f"{each:9.3f}" if isinstance(each, float) else f"  {each}" for each in row)
            print(f"{name:18}{shown}{ratio}", flush=True)


if __name__ == "__main__":
    main()
