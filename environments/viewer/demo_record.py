"""The record that comes with Turnwise, so that there is something to look at before anything ran."""

import gzip
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

DEMO: Final = Path(__file__).parent / "demo" / "demo.jsonl.gz"
"""Made by `scripts/demo_record.py`."""


@contextmanager
def demo_record() -> Generator[Path]:
    """The bundled record as a file, for as long as it is entered."""
    with tempfile.TemporaryDirectory(prefix="turnwise-") as folder:
        record = Path(folder, "demo.jsonl")
        record.write_bytes(gzip.decompress(DEMO.read_bytes()))
        yield record
