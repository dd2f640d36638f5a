"""The report of checks in a process of their own: JSON lines through a pipe to whoever shows them."""

import os
import threading
from collections.abc import Mapping
from typing import Any

import orjson

from environments.env_checks.finding import Finding


class PipeReport:
    """Writes each thing at once; any thread may."""

    def __init__(self, descriptor: int) -> None:
        """Write into `descriptor`, which processes of the environment do not inherit."""
        os.set_inheritable(descriptor, False)
        self._descriptor = descriptor
        self._lock = threading.Lock()

    def finding(self, finding: Finding) -> None:
        """See `Report`."""
        self._write({"finding": finding.to_json()})

    def shown(self, name: str, value: Mapping[str, Any] | list[Any]) -> None:
        """See `Report`."""
        self._write({"shown": name, "value": value})

    def begins(self, check: str) -> None:
        """See `Report`."""
        self._write({"begins": check})

    def doing(self, what: str) -> None:
        """See `Report`."""
        self._write({"doing": what})

    def says(self, line: str) -> None:
        """See `Report`."""
        self._write({"says": line})

    def is_alive(self, blocked_at: str | None) -> None:
        """See `Report`."""
        self._write({"blocked": blocked_at})

    def end(self) -> None:
        """All is told."""
        self._write({"end": True})

    def _write(self, message: Mapping[str, Any]) -> None:
        line = memoryview(orjson.dumps(_utf8(message), default=str) + b"\n")
        with self._lock:
            try:
                while line:
                    line = line[os.write(self._descriptor, line) :]
            except OSError:
                os._exit(1)  # nobody reads on


def _utf8(value: Any) -> Any:
    """The value with text that UTF-8 can hold: an environment's may have half of a character."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, Mapping):
        return {_utf8(str(key)): _utf8(each) for key, each in value.items()}  # pyright: ignore[reportUnknownVariableType,reportUnknownArgumentType]
    if isinstance(value, list | tuple):
        return [_utf8(each) for each in value]  # pyright: ignore[reportUnknownVariableType]
    return value
