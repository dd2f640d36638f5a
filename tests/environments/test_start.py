"""What starting costs: nobody waits for a package that this run does not use."""

import subprocess
import sys

import pytest

HEAVY = ("atroposlib", "datasets", "docker", "numpy", "openai", "torch", "transformers", "uvicorn", "wandb")


@pytest.mark.parametrize(
    ("module", "used"),
    [
        ("environments.base_env", ()),
        ("environments.turn_level_reward", ()),
        ("environments.testing", ()),
        ("turnwise.cli.main", ()),
        ("turnwise.cli.process", ()),
        ("environments.serve.serving", ()),
        ("turnwise.cli.evaluate", ("numpy",)),
        ("environments.shipped.code_debug", ()),
    ],
)
def test_a_module_loads_no_heavy_package_that_it_does_not_use(module, used):
    code = f"import sys, {module}; print([name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(list(used))


def test_a_run_with_the_scripted_agent_loads_no_heavy_package(tmp_path):
    code = (
        "import sys; from turnwise.cli.main import main; "
        f"main(['process', 'terminal_tasks', '--env.max_items', '1', '--out', {str(tmp_path / 'r')!r}]); "
        f"print([name for name in {HEAVY} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
