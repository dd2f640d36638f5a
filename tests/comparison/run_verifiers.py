"""The verifiers versions, run: `python run_verifiers.py [NAME…]` where verifiers and uv are.

Each is a run of `vf-eval`, against a model server on loopback that plays a script (`second_model.py`).
"""

import json
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

from second_model import serving

HERE = Path(__file__).resolve().parent
SEATS = {
    "maths": ["agent"],
    "word_game": ["player"],
    "rubric": ["agent"],
    "shop": ["assistant", "user"],
    "judge": ["writer"],
}


def run(name, url):
    env = {
        **os.environ,
        "SECOND_MODEL_URL": url,
        "PRIME_API_KEY": "none",
        "PYTHONPATH": f"{HERE}{os.pathsep}{HERE / 'verifiers_envs'}",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    with tempfile.TemporaryDirectory() as folder:
        command = ["vf-eval", name, "--client.base-url", url, "--model", "m", "-n", "2", "-r", "2"]
        command += ["--no-push", "--no-rich", "-o", folder]
        command += ["--env.id", "user-sim"] if name == "shop" else []
        for seat in SEATS[name]:
            command += [f"--env.{seat}.runtime.type", "subprocess", f"--env.{seat}.harness.id", "null"]
        subprocess.run(command, env=env, cwd=folder, check=True, capture_output=True)
        (traces,) = Path(folder).rglob("traces.jsonl")
        for line in traces.read_text().splitlines():
            for trace in json.loads(line)["traces"]:
                rewards = {key: each["score"] * each["weight"] for key, each in trace["rewards"].items()}
                print(name, trace["agent"]["name"], rewards, trace["errors"], flush=True)


if __name__ == "__main__":
    with serving() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        for name in sys.argv[1:] or SEATS:
            run(name, f"http://127.0.0.1:{server.server_port}/v1")
        server.shutdown()
