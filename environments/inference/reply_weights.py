"""Which weights sampled a reply, where its server tells."""

from collections.abc import Mapping
from hashlib import blake2b
from typing import Any, cast

from environments.inference.server_text import one_line
from environments.trajectory import SEVERAL_VERSIONS


def weight_version_of(choice: Mapping[str, Any], *facts: object) -> str | None:
    """The version of the weights, or of all that one completion was sampled by; `None`: unknown.

    Args:
        choice: of the reply; vLLM's `weight_versions` has a version per stretch of tokens.
        facts: where SGLang's `weight_version` may be.
    """
    spans = choice.get("weight_versions")
    told = [*cast("list[object]", spans)] if isinstance(spans, list) else []
    # Where nobody says who sampled a stretch, the others would tell too young an age.
    names = [_name(_get(span, "version")) for span in told]
    if not told:
        names = [_name(version) for each in facts if (version := _get(each, "weight_version")) is not None]
    return SEVERAL_VERSIONS.join(dict.fromkeys(cast("list[str]", names))) if names and all(names) else None


def _name(version: object) -> str | None:
    """One line of its own for each version; where the server's is none, what tells it apart is added."""
    if not isinstance(version, str | int) or isinstance(version, bool):
        return None
    text = str(version).strip()
    line = one_line(text).replace(SEVERAL_VERSIONS, " ")
    if line in ("", text):
        return line or None
    return f"{line} #{blake2b(text.encode('utf-8', 'surrogatepass'), digest_size=4).hexdigest()}"


def _get(fields: object, name: str) -> object:
    return cast("dict[str, object]", fields).get(name) if isinstance(fields, dict) else None
