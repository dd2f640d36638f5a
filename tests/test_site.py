"""The documentation as a site: built with warnings as errors, whole, and open to those without a network."""

import html
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import turnwise
from environments.rollout.hooks import Hooks
from scripts.reference_pages import commands_page, settings_page
from turnwise import condensers, credit, records, rewards

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
CHROMIUM = shutil.which("chromium")


class _Loader(yaml.SafeLoader):
    """mkdocs' own tags may stand in the file."""


def pages_of(nav):
    for entry in nav:
        for value in entry.values():
            yield from [value] if isinstance(value, str) else pages_of(value)


def nav():
    return list(pages_of(yaml.load((ROOT / "mkdocs.yml").read_text(), _Loader)["nav"]))


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    shutil.copy(ROOT / "mkdocs.yml", folder)
    shutil.copytree(DOCS, folder / "docs")
    (folder / "docs/reference/settings.md").write_text(settings_page())
    (folder / "docs/reference/commands.md").write_text(commands_page())
    for package in ("environments", "tools", "turnwise"):
        (folder / package).symlink_to(ROOT / package)
    built = subprocess.run(
        [Path(sys.executable).with_name("zensical"), "build", "--strict"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    return folder / "site"


def test_every_page_of_the_docs_is_in_the_navigation():
    written = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")}
    made = {"reference/settings.md", "reference/commands.md"}
    assert sorted((written | made) ^ set(nav())) == []


def test_every_public_name_is_in_the_reference():
    text = "".join(page.read_text() for page in (DOCS / "reference").glob("*.md"))
    named = set(re.findall(r"^::: [\w.]+\.(\w+)$", text, re.MULTILINE))
    modules = [turnwise, condensers, credit, records, rewards]
    public = {name for module in modules for name in module.__all__ if not name.endswith("Config")}
    assert sorted(public - named - {"__version__"}) == []  # a config is a table of the settings


def test_a_type_of_several_is_written_without_an_escape():
    assert "str &#124; None" in settings_page()
    assert "\\|" not in settings_page()


FIELDS = {
    "values": ("weight_version", "summariser_calls", "duration_s", "timed_out"),
    "settings": ("estimator_params",),
    "commands": ("--fresh",),
}


@pytest.mark.soak  # the stage `docs` of CI builds it, too
def test_the_site_has_every_field_and_loads_nothing_from_elsewhere_and_its_search_works_from_disk(site):
    """One test, as one worker builds the site once."""
    for page, fields in FIELDS.items():
        text = (site / f"reference/{page}.html").read_text()
        assert [field for field in fields if field not in text] == [], page
    loads = re.compile(r'<(?:script|link|img|iframe)\b[^>]*?(?:src|href)="?(?:https?:)?//', re.IGNORECASE)
    assert [page.name for page in site.rglob("*.html") if loads.search(page.read_text())] == []
    if CHROMIUM is None:
        assert not os.environ.get("TURNWISE_REQUIRE_BROWSER"), "no chromium"
        pytest.skip("needs chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as browsers:
        browser = browsers.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page()
        page.goto((site / "index.html").as_uri())
        page.get_by_role("button", name="Search").first.click()
        page.keyboard.type("baseline", delay=20)
        page.get_by_text(re.compile(r"^\d+ results")).first.wait_for()
        typed = page.get_by_role("combobox").first.input_value()
        browser.close()
    assert typed == "baseline"


def test_the_reference_of_an_environment_has_every_hook_first_in_the_order_of_a_run(site):
    page = (site / "reference/environments.html").read_text()
    order = re.findall(r'id="environments\.rollout\.hooks\.Hooks\.(\w+)"', page)
    written = {name for name in vars(Hooks) if not name.startswith("_")} | {"config"}
    assert set(order) == written
    hooks = [name for name in order if callable(getattr(Hooks, name, None)) and name != "env_config_cls"]
    assert order[: len(hooks)] == hooks
    assert hooks.index("prepare") < hooks.index("format_prompt") < hooks.index("respond")


def test_no_page_of_the_reference_shows_an_escape_or_a_reference_that_leads_nowhere(site):
    for page in (site / "reference").glob("*.html"):
        text = html.unescape(re.sub(r"<code>[^<]*</code>|<[^>]+>", "", page.read_text()))
        assert "\\|" not in text, page
        assert re.findall(r"\]\[[\w.]*\]", text) == [], page
