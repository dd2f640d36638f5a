"""A real Chromium without a screen, for tests of pages; skipped where there is none, unless required."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

CHROMIUM = Path("/usr/bin/chromium")
_FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-sync",
    "--no-first-run",
]
_MOST_MS = 120_000
"""Whatever is waited for comes much sooner, but on a busy machine."""


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser with a fresh profile."""
    if not CHROMIUM.exists():
        if os.environ.get("TURNWISE_REQUIRE_BROWSER") == "1":
            pytest.fail(f"{CHROMIUM} is required and is not there")
        pytest.skip(f"no {CHROMIUM}")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=_FLAGS, timeout=_MOST_MS)
        try:
            yield browser
        finally:
            browser.close()


def new_page(browser: Browser, **options: Any) -> Page:
    """A page that is patient."""
    page = browser.new_page(**options)
    page.set_default_timeout(_MOST_MS)
    return page


@contextmanager
def watched_page() -> Iterator[Page]:
    """A page of one browser: `asked` is what it asked the network for, `errors` what went wrong."""
    with chromium() as browser:
        page = new_page(browser, viewport={"width": 1440, "height": 900})
        page.asked, page.errors = [], []
        page.on("request", lambda request: page.asked.append(request.url))
        page.on("pageerror", lambda error: page.errors.append(str(error)))
        page.on("console", lambda said: said.type == "error" and page.errors.append(said.text))
        yield page


def opened(page: Page, url: str, address: str = "") -> Page:
    """The page at an address of its own, loaded anew."""
    page.goto("about:blank")
    page.goto(url + address)
    page.wait_for_selector(".tile, .group, .list, .notice:not(:text('Reading'))")
    return page


def texts(page: Page, selector: str) -> list[str]:
    """What stands in the elements, each without the space around it."""
    return [text.strip() for text in page.locator(selector).all_inner_texts()]
