"""Seconds and memory of importing one trace of verifiers, by its length and shape.

python -m tests.benchmarks.bench_import [--nodes 4000 8000 16000]
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.environments.record.sessions.test_verifiers_trace import long_trace

SHAPES = ("chain", "rewritten", "siblings")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int, nargs="+", default=[4000, 8000, 16000])
    for shape in SHAPES:
        for count in parser.parse_args().nodes:
            with tempfile.TemporaryDirectory() as folder:
                file = Path(folder, "traces.jsonl")
                file.write_text(json.dumps({"id": "t", **long_trace(shape, count)}) + "\n")
                words = ["-m", "turnwise", "import", str(file), "--out", f"{folder}/record.jsonl"]
                started = time.monotonic()
                subprocess.run([sys.executable, *words], check=True, capture_output=True)
                took_s = time.monotonic() - started
            peak_mb = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss >> 10
            print(f"{shape} {count}: {took_s:.1f} s, at most {peak_mb} MB so far")


if __name__ == "__main__":
    main()
