"""Records and pages for the tests of the viewer."""

import base64
import gzip
import json
import re
from dataclasses import replace

from environments.credit import credited
from environments.record.recorder import Recorder
from turnwise.viewer.page_values import PageContent, TextCutter, TokenTexts
from turnwise.viewer.record_page import write_record_page

_BLOCK = re.compile(r'<script type="text/plain" id="block-([\w.]+)">([A-Za-z0-9+/=]*)</script>')


def recorded(path, *groups, estimator="turn_return", **params):
    """A record of these groups, credited; each is an item of its own."""
    with Recorder(path) as recorder:
        for number, group in enumerate(groups):
            named = replace(group, item_id=f"item {number}", group_id=f"item {number}-0", env="toy")
            recorder.append(credited(named, estimator, policy="scripted", params=params))
    return path


def content(*, max_chars=1000, tokens=True):
    cutter = TextCutter(max_chars=max_chars)
    return PageContent(cutter=cutter, tokens=tokens, token_texts=TokenTexts.of(None) if tokens else None)


def page(record, *, max_bytes=10**8, of=None, **options):
    """The blocks of a record's page, by name."""
    out = record.with_suffix(".html")
    write_record_page(record, out, of or content(), max_bytes=max_bytes, **options)
    return blocks_of(out.read_text())


def blocks_of(text):
    return {name: json.loads(gzip.decompress(base64.b64decode(data))) for name, data in _BLOCK.findall(text)}
