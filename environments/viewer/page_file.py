"""A page as one HTML file that opens from disk: written block by block, and there once it is whole."""

import base64
import gzip
import os
import shutil
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import orjson

from environments.record.private_file import private
from environments.viewer.page_template import page_template
from environments.viewer.page_values import RunIndex
from tools.errors import RecordError


def compressed(value: Any) -> bytes:
    """A value as gzip'd JSON; equal values give equal bytes."""
    return gzip.compress(orjson.dumps(value), compresslevel=6, mtime=0)


class PageFile:
    """A page in the making.

    The index stands before the blocks and is known last, so that blocks wait in a file of their own.
    """

    def __init__(self, out: Path, *, max_bytes: int) -> None:
        """Begin a page that is to stand at `out`.

        Raises:
            RecordError: it cannot be written there.
        """
        self._out = out
        self._max_bytes = max_bytes
        self.block_bytes = 0
        self._waiting = out.with_name(f"{out.name}.{os.getpid()}.blocks")
        self._part = out.with_name(f"{out.name}.{os.getpid()}.part")
        try:
            self._blocks = open(self._waiting, "w+b", opener=private)  # noqa: SIM115  # `open` takes no opener there
        except OSError as error:
            raise self._unwritable(error) from error

    def add(self, name: str, value: Any) -> None:
        """Add a block.

        Raises:
            RecordError: the disk is full, or the page would become too large.
        """
        element = _element(name, value)
        self.block_bytes += len(element)
        if self.block_bytes > self._max_bytes:
            raise RecordError(
                f"the page would be larger than {self._max_bytes / 1e6:,.0f} MB; show fewer --groups, cut "
                "texts with --max-text, leave out --no-tokens, or permit it with --max-size"
            )
        try:
            self._blocks.write(element)
        except OSError as error:
            raise self._unwritable(error) from error

    def finish(self, index: RunIndex) -> int:
        """Put the page where it is to stand; its size in bytes.

        Raises:
            RecordError: the disk is full.
        """
        template = page_template(index["title"], live=False)
        try:
            self._blocks.seek(0)
            with open(self._part, "wb", opener=private) as page:
                page.write(template.before.encode() + _element("index", index))
                page.write(template.between.encode())
                shutil.copyfileobj(self._blocks, page, 1 << 20)
                page.write(template.after.encode())
                size = page.tell()
            self._part.replace(self._out)
        except OSError as error:
            raise self._unwritable(error) from error
        return size

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._blocks.close()
        self._waiting.unlink(missing_ok=True)
        self._part.unlink(missing_ok=True)

    def _unwritable(self, error: OSError) -> RecordError:
        return RecordError(f"cannot write {self._out}: {error.strerror}")


def _element(name: str, value: Any) -> bytes:
    """A block in the page; letters of base64 cannot end its element."""
    data = base64.b64encode(compressed(value))
    return b'<script type="text/plain" id="block-%b">%b</script>\n' % (name.encode(), data)
