"""What an item is called across runs, wherever it stands."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

from tools.errors import DatasetError

ID_FIELDS = ("item_id", "task_id", "id")


def item_id(item: Any) -> str:
    """The name an item keeps across runs, whatever its position: its first id field, else its content."""
    if isinstance(item, Mapping):
        fields = cast(Mapping[str, Any], item)
        for field in ID_FIELDS:
            if fields.get(field) is not None:
                return str(fields[field])
    content = json.dumps(item, sort_keys=True, ensure_ascii=False, default=str)
    return hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def item_ids(items: Sequence[Any]) -> list[str]:
    """`item_id` of every item.

    Raises:
        DatasetError: two items have the same id.
    """
    first: dict[str, int] = {}
    for index, item in enumerate(items):
        identity = item_id(item)
        if identity in first:
            raise DatasetError(
                f"items {first[identity] + 1} and {index + 1} have the same id {identity!r}; an id is the "
                f"first of {list(ID_FIELDS)} that an item has, or else its content, and must differ"
            )
        first[identity] = index
    return list(first)
