"""The files of the page: what they may do, and that they come from nowhere else."""

import re
from importlib.resources import files

import pytest

from tidelog.base.serving.surface import HttpRequest
from tidelog.dashboard.assets import POLICY, Assets

STATIC = files("tidelog.dashboard") / "static"
NAMES = sorted(file.name for file in STATIC.iterdir())
MAX_LINES = 300
"""A module that is longer has more than one subject."""


def ask(name: str, **headers: str) -> HttpRequest:
    """A request for a file."""
    given = tuple(
        (key.replace("_", "-").encode(), value.encode()) for key, value in headers.items()
    )
    return HttpRequest("GET", b"", b"", given, b"", "", {"file": name})


@pytest.mark.parametrize("name", NAMES)
def test_no_file_names_another_host(name: str) -> None:
    """The page works without a network: no file leads anywhere else."""
    text = (STATIC / name).read_text(encoding="utf-8")
    found = re.findall(r"(?:https?:)?//[a-z0-9.]+\.[a-z]+[^\s\"')]*", text)
    assert [url for url in found if not url.startswith("http://www.w3.org/")] == []


@pytest.mark.parametrize("name", [name for name in NAMES if name.endswith(".js")])
def test_no_script_writes_markup(name: str) -> None:
    """Text becomes text nodes: nothing in the page turns a string into elements or code."""
    text = (STATIC / name).read_text(encoding="utf-8")
    for way in (
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "Function(",
    ):
        assert way not in text
    assert len(text.splitlines()) <= MAX_LINES


@pytest.mark.parametrize("name", [name for name in NAMES if name.endswith(".html")])
def test_no_page_has_inline_code(name: str) -> None:
    """The policy forbids inline script and style, and the pages have none."""
    text = (STATIC / name).read_text(encoding="utf-8")
    assert re.findall(r"<script(?![^>]*\ssrc=)", text) == []
    assert re.findall(r"<style|\sstyle=|\son[a-z]+=", text) == []


def test_the_policy_allows_only_ourselves() -> None:
    """Nothing inline, no other host, in no frame."""
    assert "default-src 'none'" in POLICY
    assert "frame-ancestors 'none'" in POLICY
    assert "unsafe" not in POLICY
    assert {source for part in POLICY.split("; ") for source in part.split(" ")[1:]} == {
        "'none'",
        "'self'",
    }


def test_a_file_is_sent_once() -> None:
    """A browser that has the file is told so, and gets no other file."""
    assets = Assets()
    first = assets.file(ask("main.js"))
    tag = dict(first.headers)[b"etag"].decode()
    assert (first.status, first.content_type) == (200, "text/javascript; charset=utf-8")
    assert assets.file(ask("main.js", if_none_match=tag)).status == 304
    assert assets.file(ask("dom.js", if_none_match=tag)).status == 200


@pytest.mark.parametrize(
    "name", ["index.html", "login.html", "..", "../surface.py", "", "nothing.js"]
)
def test_only_files_of_the_page_are_served(name: str) -> None:
    """Pages have routes of their own, and there is no way out of the folder."""
    assert Assets().file(ask(name)).status == 404
