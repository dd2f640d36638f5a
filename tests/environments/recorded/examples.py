"""The examples of docs/examples/recorded, as modules."""

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parents[3] / "docs" / "examples" / "recorded"


def example(name):
    spec = spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
