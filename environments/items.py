"""Dataset items: from the Hugging Face hub, or from a local .jsonl, .json or .parquet file."""

import codecs
import json
import logging
import ssl
import tempfile
import urllib.error
import urllib.request
from collections.abc import Generator, Iterable, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import datasets as hf_datasets
import datasets.config as hf_config
import huggingface_hub.constants
import pyarrow as arrow
from datasets.utils import logging as datasets_logging
from pyarrow import parquet as arrow_parquet

from tools.errors import DatasetError

HUB_PROBE_S = 5.0

logger = logging.getLogger(__name__)

Item = dict[str, Any]

# These are only partly typed.
_hf: Any = hf_datasets
_arrow: Any = arrow
_parquet: Any = arrow_parquet


def load_items(
    *,
    name: str | None = None,
    config: str | None = None,
    split: str = "train",
    path: str | Path | None = None,
    limit: int | None = None,
    required_fields: Sequence[str] = (),
) -> list[Item]:
    """The items of one source, in its order.

    A local file goes through the same `datasets` readers as the hub, into memory: nothing is left in
    the cache of `datasets`, and no request is made. As on the hub, a field that only some rows have is
    `None` in the others, and a column of ISO timestamps becomes datetimes.

    Args:
        name: hub dataset; give this or `path`.
        config: configuration of the hub dataset.
        split: split of the hub dataset, slices such as `test[:10]` included.
        path: local file.
        limit: keep only the first items.
        required_fields: fields that every item must have with a value other than null.

    Raises:
        DatasetError: the source is missing, unreadable, malformed or empty, or lacks a field.
    """
    if (name is None) == (path is None):
        raise DatasetError(
            f"items come either from a hub dataset or from a file; got dataset_name={name!r} and "
            f"dataset_path={None if path is None else str(path)!r}"
        )
    if path is not None:
        source, lines = str(path), _check_local(Path(path))
        items = _read_local(Path(path), limit)
    else:
        source, lines = f"hub dataset {name!r}", None
        items = _read_hub(str(name), config, split, limit)
    if not items:
        raise DatasetError(f"{source} has no items")
    for row, item in enumerate(items):
        _check_fields(item, required_fields, source, _where(row, lines))
    return items


def _check_local(path: Path) -> list[int] | None:
    """Find what `datasets` would report badly; the line of each row for a file of JSON lines."""
    try:
        is_file, exists = path.is_file(), path.exists()
    except OSError as error:
        raise DatasetError(f"cannot read {path}: {error.strerror or error}") from None
    if not exists:
        raise DatasetError(f"no dataset file at {path}")
    if not is_file:
        raise DatasetError(f"{path} is not a file; expected a .jsonl, .json or .parquet file")
    if path.suffix not in {".jsonl", ".json", ".parquet"}:
        raise DatasetError(f"cannot read {path}: expected a .jsonl, .json or .parquet file")
    try:
        with path.open("rb") as file:
            if path.suffix == ".parquet":
                _check_parquet(path)
                return None
            if path.suffix == ".json" and file.read(4096).removeprefix(codecs.BOM_UTF8).lstrip()[:1] == b"[":
                file.seek(0)
                _check_json_list(path, file.read())
                return None
            file.seek(0)
            return _check_json_lines(path, file)
    except OSError as error:
        raise DatasetError(f"cannot read {path}: {error.strerror or error}") from None


def _check_parquet(path: Path) -> None:
    try:
        rows: int = _parquet.read_metadata(path).num_rows
    except _arrow.ArrowException as error:
        raise DatasetError(f"cannot read {path} as parquet: {error}") from None
    if rows == 0:
        raise DatasetError(f"{path} has no items")


def _check_json_list(path: Path, data: bytes) -> None:
    try:
        rows = json.loads(data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise DatasetError(f"{path}, line {line}: not UTF-8 text") from None
    except json.JSONDecodeError as error:
        raise DatasetError(f"{path}, line {error.lineno}: not valid JSON: {error.msg}") from None
    if not rows:
        raise DatasetError(f"{path} has no items")
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, dict):
            raise DatasetError(f"{path}, row {number}: expected a JSON object, got {_kind(row)}")


def _check_json_lines(path: Path, lines: Iterable[bytes]) -> list[int]:
    numbers: list[int] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line.decode("utf-8-sig" if number == 1 else "utf-8"))
        except UnicodeDecodeError:
            raise DatasetError(f"{path}, line {number}: not UTF-8 text") from None
        except json.JSONDecodeError as error:
            raise DatasetError(
                f"{path}, line {number}: not valid JSON: {error.msg} at column {error.colno}; "
                "expected one JSON object a line"
            ) from None
        if not isinstance(row, dict):
            raise DatasetError(f"{path}, line {number}: expected a JSON object, got {_kind(row)}")
        numbers.append(number)
    if not numbers:
        raise DatasetError(f"{path} has no items")
    return numbers


def _kind(value: object) -> str:
    if value is None:
        return "null"
    names = {"str": "a string", "bool": "a boolean", "int": "a number", "float": "a number"}
    return names.get(type(value).__name__, "a list")


def _read_local(path: Path, limit: int | None) -> list[Item]:
    # The temporary cache is gone before anyone reads the rows, so they are copied out within it.
    with _quiet(), tempfile.TemporaryDirectory(prefix="turnwise-items-") as cache:
        try:
            if path.suffix == ".parquet":
                rows = _hf.Dataset.from_parquet(str(path), cache_dir=cache, keep_in_memory=True)
            else:
                rows = _hf.Dataset.from_json(
                    str(path), cache_dir=cache, keep_in_memory=True, parse_agent_traces=False
                )
            return _first_rows(rows, limit)
        except Exception as error:  # readers raise a dozen unrelated classes
            raise DatasetError(f"cannot read {path}: {_reason(error)}") from error


def _read_hub(name: str, config: str | None, split: str, limit: int | None) -> list[Item]:
    offline = huggingface_hub.constants.HF_HUB_OFFLINE or not _hub_answers()
    with _quiet(), _offline() if offline else ExitStack():
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
    """Whether the hub can be reached: `datasets` itself retries for half a minute before it gives up."""
    request = urllib.request.Request(huggingface_hub.constants.ENDPOINT, method="HEAD")
    try:
        with urllib.request.urlopen(request, timeout=HUB_PROBE_S):
            return True
    except urllib.error.HTTPError:
        return True
    except urllib.error.URLError as error:
        # The hub client brings its own certificates: a failed handshake here says nothing about it.
        return isinstance(error.reason, ssl.SSLError)
    except OSError:
        return False


@contextmanager
def _quiet() -> Generator[None]:
    """No progress bars, log lines or usage counts from `datasets`; its settings come back afterwards."""
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
def _offline() -> Generator[None]:
    """`HF_HUB_OFFLINE=1` for one call; there is no argument for it."""
    with (
        _setting(hf_config, "HF_HUB_OFFLINE", True),
        _setting(huggingface_hub.constants, "HF_HUB_OFFLINE", True),
    ):
        yield


@contextmanager
def _setting(module: ModuleType, name: str, value: object) -> Generator[None]:
    before = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, before)


def _check_fields(item: Item, required: Sequence[str], source: str, where: str) -> None:
    for field in required:
        if item.get(field) is None:
            present = sorted(key for key, value in item.items() if value is not None)
            raise DatasetError(f"{source}, {where}: no field {field!r}; it has {present}")


def _where(row: int, lines: list[int] | None) -> str:
    return f"row {row + 1}" if lines is None else f"line {lines[row]}"


def _reason(error: BaseException) -> str:
    """The last cause, in one line: the outer errors of `datasets` only say that something failed."""
    while error.__cause__ is not None:
        error = error.__cause__
    return " ".join(f"{type(error).__name__}: {error}".split())[:500]
