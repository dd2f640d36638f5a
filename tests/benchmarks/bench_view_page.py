"""How soon a page can be read: first paint, opening a group and a turn, a search through everything.

turnwise view RECORD --out page.html
python -m tests.benchmarks.bench_view_page page.html [WORD]
"""

import statistics
import sys
from pathlib import Path
from time import perf_counter

from playwright.sync_api import Page

from tests.environments.viewer.chromium import chromium

_REPEATS = 5
_PAINTED = "performance.getEntriesByName('first-contentful-paint')[0].startTime"
_DRAWN = "performance.getEntriesByName('drawn')[0].startTime"


def timed(page: Page, action: str, selector: str) -> float:
    """Milliseconds from a step in the page to what it shows, with the paint of it."""
    started = perf_counter()
    page.evaluate(action)
    page.wait_for_selector(selector)
    page.evaluate("new Promise((go) => requestAnimationFrame(() => setTimeout(go)))")
    return 1000 * (perf_counter() - started)


def measured(page: Page, url: str, word: str) -> dict[str, float]:
    """One pass through the page, loaded anew; in milliseconds, but for the last."""
    page.goto("about:blank")
    page.goto(url)
    page.wait_for_selector(".tile")
    figures = {"first paint": page.evaluate(_PAINTED), "overview drawn": page.evaluate(_DRAWN)}
    group = "page.index.groups[page.index.groups.length >> 1]"
    figures["open a group"] = timed(page, f"go({{g: {group}.id}})", ".turn .words > :not(.wait)")
    figures["open a turn"] = timed(page, f"go({{g: {group}.id, s: 0, t: 0}})", "#drawer .ledger")
    figures["list of turns"] = timed(page, "go({v: 'turns', sort: 'largest'})", ".list .row")
    figures["search, first hit"] = timed(page, f"go({{v: 'turns', text: '{word}'}})", ".list .row mark")
    figures["search, whole"] = figures["search, first hit"] + timed(page, "0", ".count:has-text(' in ')")
    figures["elements of the page"] = page.evaluate("document.querySelectorAll('*').length")
    return figures


def main() -> None:
    """Print the median of some passes."""
    path = Path(sys.argv[1]).resolve()
    word = sys.argv[2] if len(sys.argv) > 2 else "the"
    with chromium() as browser:
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        passes = [measured(page, path.as_uri(), word) for _ in range(_REPEATS)]
        heap = page.evaluate("performance.memory.usedJSHeapSize") / 1e6
    print(f"{path.name}: {path.stat().st_size / 1e6:.1f} MB")
    for name in passes[0]:
        print(f"{name:24}{statistics.median(each[name] for each in passes):10,.0f}")
    print(f"{'heap, MB':24}{heap:10,.0f}")


if __name__ == "__main__":
    main()
