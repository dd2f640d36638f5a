"""Dataset items from the Hugging Face hub, or from a local .jsonl, .json or .parquet file."""

import codecs
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from tools.errors import DatasetError
from tools.json_input import JsonError, read_exact_json

Item = dict[str, Any]


def load_items(
    *,
    name: str | None = None,
    config: str | None = None,
    split: str = "train",
    path: str | Path | None = None,
    limit: int | None = None,
    required_fields: Sequence[str] = (),
) -> list[Item]:
    """Return the items of one source, in order.

    JSON keeps its types, and fields only in the rows that have them; on the hub and in parquet a column has
    one type and is in every row. A local file causes no request and no cache.

    Give `name` of a hub dataset, or `path` of a file. `split` may be a slice such as `test[:10]`. Every item
    must have the `required_fields`, with values other than null.

    Raises:
        DatasetError: if the source is missing, unreadable, malformed or empty, or lacks a field.
    """
    if (name is None) == (path is None):
        raise DatasetError(
            f"items come either from a hub dataset (--env.dataset_name) or from a file (--env.dataset_path), "
            f"unless the environment writes load_items; got dataset_name={name!r} and "
            f"dataset_path={None if path is None else str(path)!r}"
        )
    lines: list[int] | None = None
    if path is not None:
        source = str(path)
        items, lines = _read_local(Path(path), limit)
    else:
        # It imports `datasets`, which takes a second.
        from environments.rollout.items import readers as dataset_readers  # noqa: PLC0415

        source = f"hub dataset {name!r}"
        items = dataset_readers.from_hub(str(name), config, split, limit)
    if not items:
        raise DatasetError(f"{source} has no items")
    for row, item in enumerate(items):
        for field in required_fields:
            if item.get(field) is None:
                where = f"row {row + 1}" if lines is None else f"line {lines[row]}"
                present = sorted(key for key, value in item.items() if value is not None)
                raise DatasetError(f"{source}, {where}: no field {field!r}; it has {present}")
    return items


def check_items(
    items: Any, limit: int | None, required_fields: Sequence[str] = (), *, env: str
) -> Sequence[Any]:
    if not isinstance(items, Sequence) or isinstance(items, str):
        raise DatasetError(
            f"environment {env!r}: load_items gave an object of type {type(items).__name__}; give a list"
        )
    if not items:
        raise DatasetError(f"environment {env!r} has no items")
    kept = cast("Sequence[Any]", items)[:limit]
    for number, item in enumerate(kept if required_fields else (), 1):
        fields = cast("Item", item) if isinstance(item, Mapping) else {}
        if missing := [name for name in required_fields if name not in fields]:
            raise DatasetError(
                f"environment {env!r}, item {number}: no field {missing[0]!r}; "
                f"it has {sorted(map(str, fields))}"
            )
    return kept


def _read_local(path: Path, limit: int | None) -> tuple[list[Item], list[int] | None]:
    try:
        if not path.exists():
            raise DatasetError(f"no dataset file at {path}")
        if not path.is_file():
            raise DatasetError(f"{path} is not a file; expected a .jsonl, .json or .parquet file")
        if path.suffix not in {".jsonl", ".json", ".parquet"}:
            raise DatasetError(f"cannot read {path}: expected a .jsonl, .json or .parquet file")
        if path.suffix == ".parquet":
            from environments.rollout.items import readers as dataset_readers  # noqa: PLC0415  # as above

            return dataset_readers.from_parquet(path, limit), None
        with path.open("rb") as file:
            if path.suffix == ".json" and file.read(4096).removeprefix(codecs.BOM_UTF8).lstrip()[:1] == b"[":
                file.seek(0)
                return _json_list(path, file.read())[:limit], None
            file.seek(0)
            items, lines = _json_lines(path, file)
            return items[:limit], lines
    except OSError as error:
        raise DatasetError(f"cannot read {path}: {error.strerror or error}") from None


def _json_list(path: Path, data: bytes) -> list[Item]:
    try:
        rows = read_exact_json(data.decode("utf-8-sig"), lenient=True)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise DatasetError(f"{path}, line {line}: not UTF-8 text") from None
    except JsonError as error:
        where = path if error.line is None else f"{path}, line {error.line}"
        raise DatasetError(f"{where}: not valid JSON: {error}") from None
    return [_object(row, f"{path}, row {number}") for number, row in enumerate(rows, start=1)]


def _json_lines(path: Path, file: Iterable[bytes]) -> tuple[list[Item], list[int]]:
    items: list[Item] = []
    line_numbers: list[int] = []
    for number, line in enumerate(file, start=1):
        text = line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
        if not text.strip():
            continue
        try:
            row = read_exact_json(text.decode(), lenient=True)
        except UnicodeDecodeError:
            raise DatasetError(f"{path}, line {number}: not UTF-8 text") from None
        except JsonError as error:
            raise DatasetError(
                f"{path}, line {number}: not valid JSON: {error}; expected one JSON object a line"
            ) from None
        items.append(_object(row, f"{path}, line {number}"))
        line_numbers.append(number)
    return items, line_numbers


def _object(row: object, where: str) -> Item:
    if not isinstance(row, dict):
        names = {"NoneType": "null", "str": "a string", "bool": "a boolean", "int": "a number"}
        kind = names.get(type(row).__name__, "a number" if isinstance(row, float) else "a list")
        raise DatasetError(f"{where}: expected a JSON object, got {kind}")
    return cast(Item, row)
