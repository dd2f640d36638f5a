"""Datasets from the Hugging Face hub and from parquet, read by `datasets`. Slow to import."""

import logging
import ssl
import tempfile
import urllib.error
import urllib.request
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import datasets as hf_datasets
import datasets.config as hf_config
import huggingface_hub.constants
from datasets.utils import logging as datasets_logging
from pyarrow import parquet as arrow_parquet

from tools.errors import DatasetError

HUB_PROBE_S = 5.0

logger = logging.getLogger(__name__)

Item = dict[str, Any]

# These are only partly typed.
_hf: Any = hf_datasets
_parquet: Any = arrow_parquet


def from_parquet(path: Path, limit: int | None) -> list[Item]:
    # The temporary cache is gone before anyone reads the rows, so they are copied out within it.
    with _quiet(), tempfile.TemporaryDirectory(prefix="turnwise-items-") as cache:
        try:
            # `datasets` has no word for a file without rows.
            if _parquet.read_metadata(path).num_rows == 0:
                return []
            rows = _hf.Dataset.from_parquet(str(path), cache_dir=cache, keep_in_memory=True)
            return _first_rows(rows, limit)
        except Exception as error:  # readers raise a dozen unrelated classes
            raise DatasetError(f"cannot read {path} as parquet: {_reason(error)}") from error


def from_hub(name: str, config: str | None, split: str, limit: int | None) -> list[Item]:
    """Return the rows of a hub dataset, or of its cached copy if the hub cannot be reached.

    Raises:
        DatasetError: if it cannot be loaded.
    """
    offline = huggingface_hub.constants.HF_HUB_OFFLINE or not _hub_answers()
    with _quiet(), ExitStack() as offline_settings:
        # There is no argument for it.
        for module in (hf_config, huggingface_hub.constants) if offline else ():
            offline_settings.enter_context(_setting(module, "HF_HUB_OFFLINE", True))
        try:
            items = _first_rows(_hf.load_dataset(name, config, split=split), limit)
        except Exception as error:  # the hub client raises a dozen unrelated classes
            if offline:
                raise DatasetError(
                    f"cannot reach the Hugging Face hub for dataset {name!r}, and no copy is in the cache; "
                    "give a local file with --env.dataset_path"
                ) from error
            raise DatasetError(
                f"cannot load hub dataset {name!r} (config {config!r}, split {split!r}): {_reason(error)}"
            ) from error
    if offline:
        logger.warning("Hugging Face hub not reachable: %s comes from the local cache", name)
    return items


def _first_rows(rows: Any, limit: int | None) -> list[Item]:
    if limit is not None:
        rows = rows.select(range(min(limit, len(rows))))
    return list(rows)


def _hub_answers() -> bool:
    """Check whether the hub can be reached; `datasets` itself retries for half a minute."""
    request = urllib.request.Request(huggingface_hub.constants.ENDPOINT, method="HEAD")
    try:
        with urllib.request.urlopen(request, timeout=HUB_PROBE_S):
            return True
    except urllib.error.HTTPError:
        return True
    except urllib.error.URLError as error:
        # The hub client brings its own certificates: a failed handshake here is no evidence about it.
        return isinstance(error.reason, ssl.SSLError)
    except OSError:
        return False


@contextmanager
def _quiet() -> Generator[None]:
    verbosity = datasets_logging.get_verbosity()
    had_bars = not _hf.are_progress_bars_disabled()
    datasets_logging.set_verbosity(datasets_logging.CRITICAL)
    _hf.disable_progress_bars()
    try:
        with _setting(hf_config, "HF_UPDATE_DOWNLOAD_COUNTS", False):
            yield
    finally:
        datasets_logging.set_verbosity(verbosity)
        if had_bars:
            _hf.enable_progress_bars()


@contextmanager
def _setting(module: ModuleType, name: str, value: object) -> Generator[None]:
    before = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, before)


def _reason(error: BaseException) -> str:
    """Return the root cause in one line: the outer errors of `datasets` have no reason."""
    while error.__cause__ is not None:
        error = error.__cause__
    return " ".join(f"{type(error).__name__}: {error}".split())[:500]
