"""The site: it builds without a warning, its pages are whole, and no page needs another host."""

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from support.pages import documents
from support.walk import ROOT

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
