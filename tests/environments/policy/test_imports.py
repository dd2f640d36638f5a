import subprocess
import sys

import pytest

HEAVY = ("atroposlib", "transformers", "openai", "torch", "wandb")


@pytest.mark.parametrize("module", ["base", "rendering.chatml", "scripted"])
def test_the_embedded_policy_loads_no_heavy_package(module):
    code = f"import sys, environments.policy.{module}; print([n for n in {HEAVY} if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
