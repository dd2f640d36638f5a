"""Which weights sampled a reply, where its server tells."""

from collections.abc import Mapping
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
    versions = [_get(span, "version") for span in told] or [_get(each, "weight_version") for each in facts]
    names = [one_line(str(version)) for version in versions if isinstance(version, str | int)]
    return SEVERAL_VERSIONS.join(dict.fromkeys(filter(None, names))) or None


def _get(fields: object, name: str) -> object:
    return cast("dict[str, object]", fields).get(name) if isinstance(fields, dict) else None
