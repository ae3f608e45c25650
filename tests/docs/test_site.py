"""The site: it builds without a warning, its pages are whole, and no page needs another host."""

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from playwright.sync_api import sync_playwright

from support.dashboard.chromium import ARGUMENTS, chromium_path
from support.docs.pages import documents
from support.docs.walk import ROOT

BUILD_SECONDS = 300.0
"""A build takes some seconds on a free machine."""


class Page(HTMLParser):
    """What a page names, and what can be named in it."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.targets: list[str] = []
        self.loaded: list[str] = []
        self.ids: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect the attributes that matter."""
        for name, value in attrs:
            if not value:
                continue
            if name == "id":
                self.ids.add(value)
            elif name in ("href", "src", "srcset", "action", "data", "poster"):
                self.targets.append(value)
                if tag not in ("a", "form"):
                    self.loaded.append(value)


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built once, as `scripts/docs` builds it but elsewhere."""
    place = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-n", "-b", "html"]
    built = subprocess.run(
        [*command, "-d", str(place / "trees"), "docs", str(place / "html")],
        cwd=ROOT,
        env={**os.environ, "PYTHONWARNINGS": "ignore"},
        capture_output=True,
        text=True,
        timeout=BUILD_SECONDS,
        check=False,
    )
    assert built.returncode == 0, built.stderr[-6000:]
    assert not built.stderr.strip(), built.stderr[-6000:]
    return place / "html"


def test_defaults_are_shown_as_the_source_spells_them(site: Path) -> None:
    """No signature shows Python's own words for an object, such as `<built-in method ...>`."""
    page = (site / "reference/python.html").read_text(encoding="utf-8")
    assert not re.findall(r"&lt;(?:built-in|function|object|\w+ object at)[^;]*&gt;", page)


def pages(site: Path) -> dict[Path, Page]:
    """Every page, by its file."""
    return {path: Page(path) for path in sorted(site.rglob("*.html"))}


def test_every_document_is_a_page(site: Path) -> None:
    """A document that is not part of the site would be read by nobody."""
    made = {str(path.relative_to(site)) for path in site.rglob("*.html")}
    written = [name for name in documents() if name.startswith("docs/")]
    missing = [
        name
        for name in written
        if name.removeprefix("docs/").removesuffix(".md") + ".html" not in made
    ]
    assert len(written) > 20
    assert not missing


def test_links_of_pages_lead_somewhere(site: Path) -> None:
    """Every link of every page names a file of the site and, if it has one, an anchor in it."""
    known = pages(site)
    wrong = []
    for path, page in known.items():
        for target in page.targets:
            parts = urlsplit(target)
            if parts.scheme == "data":
                continue
            file = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            fragment = unquote(parts.fragment)
            if parts.scheme or parts.netloc or not file.exists():
                wrong.append(f"{path.name}: {target}")
            elif fragment and file in known and fragment not in known[file].ids:
                wrong.append(f"{path.name}: {target} (no such anchor)")
    assert not wrong, "\n".join(sorted(set(wrong))[:40])


def test_every_page_says_what_to_read_next() -> None:
    """One line of each document begins so, and links to another page."""
    silent = [
        name
        for name in documents()
        if name.startswith("docs/")
        and not re.search(
            r"^Read next: .*\[[^\]]+\]\([^)]+\.md(?:#[^)]*)?\)",
            (ROOT / name).read_text(encoding="utf-8"),
            re.MULTILINE,
        )
    ]
    assert not silent, silent


def test_llms_txt_names_every_page(site: Path) -> None:
    """The site's has its pages and the repository's has its documents, each once."""
    pages_named = re.findall(
        r"^- \[.+\]\((.+)\): \S", (site / "llms.txt").read_text(), re.MULTILINE
    )
    assert len(pages_named) == len(set(pages_named))
    assert all((site / name).is_file() for name in pages_named)
    named = re.findall(r"^- \[.+\]\((.+)\): \S", (ROOT / "llms.txt").read_text(), re.MULTILINE)
    written = {name for name in documents() if name.startswith("docs/")} - {"docs/index.md"}
    assert set(named) == written


@pytest.fixture
def served(site: Path) -> Iterator[str]:
    """The site's address, since a page may copy only where it was fetched safely."""
    handler = partial(SimpleHTTPRequestHandler, directory=str(site))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_a_block_is_copied_by_its_button(served: str) -> None:
    """In a real Chromium: the button of a block puts just its text on the clipboard."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium_path(), args=list(ARGUMENTS))
        context = browser.new_context(permissions=["clipboard-read", "clipboard-write"])
        page = context.new_page()
        page.goto(f"{served}/installation.html")
        block = page.locator("div.highlight", has_text="pip install .").first
        block.hover()
        block.get_by_role("button", name="Copy this block").click()
        block.get_by_text("Copied").wait_for()
        copied = page.evaluate("navigator.clipboard.readText()")
        browser.close()
    assert copied == "python3 -m venv .venv && . .venv/bin/activate\npip install ."


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    """Neither a page nor a style names a file of another host to load."""
    outside = [
        f"{path.name}: {loaded}"
        for path, page in pages(site).items()
        for loaded in page.loaded
        if "//" in loaded and not loaded.startswith("data:")
    ]
    for style in site.rglob("*.css"):
        text = style.read_text(encoding="utf-8")
        outside += re.findall(r"(?:@import|url\()\s*[\"']?(?:https?:)?//[^\"')]+", text)
    assert not outside


def test_the_builder_of_the_repository_builds_the_same_way() -> None:
    """`scripts/docs` has the options that this test has."""
    text = (ROOT / "scripts/docs").read_text(encoding="utf-8")
    assert "-q -W --keep-going -n -b html" in text
