"""The files beside the record of a run that say how it came to be: settings, source, fingerprint."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from environments.base_env import AgentEnv
from environments.record.origin import RunOrigin
from environments.record.private_file import read_small, write_private
from environments.record.run_folder import RunFolder
from environments.run.environment_copy import copy_environment, remove
from environments.run.experiment import environment_files
from environments.run.run_log import moment
from environments.run.run_settings import Sources, settings_text
from tools.errors import RecordError

_MOST_EARLIER = 100
_LONGEST = 16 * 1024 * 1024
"""Bytes of a fingerprint that is read; a longer one is damaged."""
_SHOWN_LEFT_OUT = 3


def write_run_files(
    folder: RunFolder,
    env: AgentEnv,
    origin: RunOrigin,
    *,
    sources: Sources | None,
    accepted: Sequence[str],
    resumed: bool,
) -> list[str]:
    """Bring `config.yaml`, `environment/` and `fingerprint` up to date before the first group.

    Args:
        folder: the run's.
        env: its environment, open.
        origin: what its groups have in common.
        sources: where its settings came from.
        accepted: how the experiment differs from that of the groups which are there.
        resumed: whether there are groups.

    Returns:
        What is to be said about it.

    Raises:
        RecordError: one of them cannot be written.
    """
    before = _read(folder.fingerprint) if resumed else None
    head = f"# {env.name}, last started {moment()}; --config takes this file.\n"
    write_private(folder.config, (head + settings_text(env, sources)).encode("utf-8", "backslashreplace"))
    if before is not None and before["fingerprint"] == origin.fingerprint and folder.environment.is_dir():
        return []
    if before is not None and before["fingerprint"] != origin.fingerprint:
        _keep_source(folder, str(before["fingerprint"]))
    left_out = copy_environment(environment_files(env), folder.environment)
    earlier = [] if before is None else [*_earlier(before), before]
    now: dict[str, Any] = {
        "fingerprint": origin.fingerprint,
        "since": moment(),
        "facts": origin.facts(),
        "credit": origin.credit_facts(),
        "accepted": list(accepted),
        "not_in_environment": left_out,
        "earlier": [
            {name: value for name, value in each.items() if name != "earlier"}
            for each in earlier[-_MOST_EARLIER:]
        ],
    }
    text = json.dumps(now, indent=2, ensure_ascii=False)
    write_private(folder.fingerprint, text.encode("utf-8", "backslashreplace") + b"\n")
    if not left_out:
        return []
    names = [f"{name} ({why})" for name, why in list(left_out.items())[:_SHOWN_LEFT_OUT]]
    more = len(left_out) - len(names)
    return [f"left out of {folder.environment}: {', '.join(names)}" + (f" and {more} more" if more else "")]


def _keep_source(folder: RunFolder, fingerprint: str) -> None:
    """The source that earlier groups were made with, under a name of its own."""
    kept = folder.path / f"environment-{fingerprint[:8]}"
    try:
        if folder.environment.is_dir() and not kept.exists():
            folder.environment.rename(kept)
    except OSError as error:
        raise RecordError(f"cannot write {kept}: {error.strerror}") from error
    remove(folder.environment)


def _read(path: Path) -> dict[str, Any] | None:
    """What was written; `None` where there is nothing, or nothing of ours."""
    try:
        fields: Any = json.loads(read_small(path, _LONGEST) or b"")
    except (ValueError, RecursionError):
        return None
    known = isinstance(fields, dict) and isinstance(cast("dict[str, Any]", fields).get("fingerprint"), str)
    return cast("dict[str, Any]", fields) if known else None


def _earlier(before: dict[str, Any]) -> list[dict[str, Any]]:
    listed = before.get("earlier")
    return [
        each
        for each in cast("list[Any]", listed if isinstance(listed, list) else [])
        if isinstance(each, dict)
    ]
