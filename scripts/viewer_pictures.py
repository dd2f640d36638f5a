"""Draws the pictures of the docs from the demo's record, or every view of it at two widths into a folder.

python -m scripts.viewer_pictures [FOLDER]
"""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from click.testing import CliRunner
from playwright.sync_api import Browser, expect, sync_playwright

from turnwise.cli.view import command

ROOT = Path(__file__).resolve().parent.parent
CHROMIUM = Path("/usr/bin/chromium")
GROUP = "page.index.groups.find((group) => group.item === 'Embedded/1').id"
VIEWS = {
    "overview": "{v: 'overview'}",
    "rollouts": "{v: 'rollouts'}",
    "turns": "{v: 'turns'}",
    "estimators": "{v: 'estimators'}",
    "group": f"{{g: {GROUP}}}",
    "turn": f"{{g: {GROUP}, s: 1, t: 2}}",
    "transcript": f"{{g: {GROUP}, s: 1, only: 1}}",
}
IN_DOCS = "turn"
LEDGERS = {
    "code_debug": ("Embedded/1", 1, 2),
    "sales_chat": ("backpack", 0, 1),
    "judged_writing": ("market_notice", 0, 1),
    "retail": ("cancel_by_mistake", 0, 5),
}
"""Item, sibling and turn of each picture in docs/gallery."""
WIDTHS = (1400, 420)


def main() -> None:
    with TemporaryDirectory() as folder, sync_playwright() as playwright:
        page = Path(folder, "demo.html")
        CliRunner().invoke(command, ["--demo", "--out", str(page)], catch_exceptions=False)
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        for out in map(Path, sys.argv[1:]):
            for width in WIDTHS:
                for view in VIEWS:
                    draw(browser, page.as_uri(), VIEWS[view], width, out / f"{view}-{width}.png")
        if not sys.argv[1:]:
            draw(browser, page.as_uri(), VIEWS[IN_DOCS], WIDTHS[0], ROOT / "docs" / "viewer.png")
            for env, (item, sibling, turn) in LEDGERS.items():
                group = f"page.index.groups.find((group) => group.item === '{item}').id"
                view, out = f"{{g: {group}, s: {sibling}, t: {turn}}}", ROOT / "docs/gallery" / f"{env}.png"
                draw(browser, page.as_uri(), view, WIDTHS[0], out, of="#drawer")
        browser.close()


def draw(browser: Browser, url: str, view: str, width: int, out: Path, of: str = "body") -> None:
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme="light")
    page.goto(url)
    page.wait_for_selector(".tile")
    page.evaluate(f"go({view})")
    expect(page.locator(".wait")).to_have_count(0, timeout=30_000)
    page.wait_for_timeout(500)  # rows that scroll into view are filled
    if of == "body":
        page.screenshot(path=out)
    else:
        page.locator(of).screenshot(path=out)
    page.close()


if __name__ == "__main__":
    main()
