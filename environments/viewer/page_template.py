"""The page without its data: the files of `page/` in one, under a policy that lets it load nothing."""

import base64
import hashlib
import html
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_FOLDER = Path(__file__).parent / "page"
_TEMPLATE = "template.html"
_STYLE = re.compile(r'<link rel="stylesheet" href="([\w.-]+)">')
_SCRIPT = re.compile(r'<script src="([\w.-]+)"></script>')
_META = re.compile(r'<meta http-equiv="Content-Security-Policy"[^>]*>')
_INDEX = re.compile(r"<!-- index\b.*?-->")
_BLOCKS = re.compile(r"<!-- blocks\b.*?-->")
_TITLE = "<title>Turnwise</title>"
_ENDS_EARLY = re.compile(r"</(?:script|style)|<!--", re.IGNORECASE)
_POLICY = (
    "default-src 'none'; script-src {scripts}; style-src {styles}; img-src data:; connect-src {connect}; "
    "base-uri 'none'; form-action 'none'"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PageTemplate:
    """The text of a page around its data."""

    before: str
    """Up to the index."""
    between: str
    """From the index to the blocks: the program, which may start before they are read."""
    after: str


def page_template(title: str, *, live: bool) -> PageTemplate:
    """The page of this title; a live one may ask its own server, any other one nobody."""
    text = _program("'self'" if live else "'none'")
    text = text.replace(_TITLE, f"<title>{html.escape(title)}</title>", 1)
    before, between = _INDEX.split(text)
    between, after = _BLOCKS.split(between)
    return PageTemplate(before=before, between=between, after=after)


@cache
def _program(connect: str) -> str:
    """The template with its styles and scripts in it, and the policy that permits them by their hashes."""
    text = (_FOLDER / _TEMPLATE).read_text(encoding="utf-8")
    styles: list[str] = []
    scripts: list[str] = []
    text = _STYLE.sub(_inlined("style", styles), text)
    text = _SCRIPT.sub(_inlined("script", scripts), text)
    policy = _POLICY.format(scripts=" ".join(scripts), styles=" ".join(styles), connect=connect)
    return _META.sub(f'<meta http-equiv="Content-Security-Policy" content="{policy}">', text, count=1)


def _inlined(tag: str, hashes: list[str]) -> Callable[[re.Match[str]], str]:
    def inline(named: re.Match[str]) -> str:
        text = (_FOLDER / named[1]).read_text(encoding="utf-8")
        if found := _ENDS_EARLY.search(text):
            raise ValueError(f"page/{named[1]} holds {found[0]!r}, which would end its element early")
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        hashes.append(f"'sha256-{digest}'")
        return f"<{tag}>{text}</{tag}>"

    return inline
