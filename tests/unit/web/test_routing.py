"""Paths: which template a path fits and what its parameters are."""

import pytest

from tidelog.web.routing import Paths


def paths(*templates: str) -> Paths[str]:
    """Templates that stand for themselves."""
    found: Paths[str] = Paths()
    for template in templates:
        found.add(template, template)
    return found


@pytest.mark.parametrize(
    ("raw_path", "expected"),
    [
        (b"/", ("/", {})),
        (b"/app/abc", ("/app/{key}", {"key": "abc"})),
        (b"/app/a%2Fb", ("/app/{key}", {"key": "a/b"})),
        (b"/app/%2541", ("/app/{key}", {"key": "%41"})),
        (b"/app/%C3%A4", ("/app/{key}", {"key": "ä"})),
        (b"/app/a+b", ("/app/{key}", {"key": "a+b"})),
        (b"/%61pp/x", ("/app/{key}", {"key": "x"})),
        (b"/app/fixed", ("/app/fixed", {})),
        (b"/app/fixed/more", ("/app/{key}/more", {"key": "fixed"})),
        (b"/app/fixed/only", ("/app/fixed/only", {})),
        (b"/a/1/b/2", ("/a/{x}/b/{y}", {"x": "1", "y": "2"})),
    ],
)
def test_finds(raw_path: bytes, expected: tuple[str, dict[str, str]]) -> None:
    """A path finds its template, fixed segments first, with parameters decoded exactly once."""
    registered = paths(
        "/",
        "/app/{key}",
        "/app/fixed",
        "/app/fixed/only",
        "/app/{key}/more",
        "/a/{x}/b/{y}",
    )
    assert registered.find(raw_path) == expected


@pytest.mark.parametrize(
    "raw_path",
    [b"", b"app/x", b"/app", b"/app/", b"/app/x/", b"/app/%FF", b"/other", b"//app/x", b"*"],
)
def test_finds_nothing(raw_path: bytes) -> None:
    """A path that is shorter, longer, empty in a parameter or not UTF-8 fits no template."""
    assert paths("/app/{key}").find(raw_path) is None


@pytest.mark.parametrize(
    "template",
    ["", "app", "/a/{}", "/a/{b}/{b}", "/a/x{b}", "/a/{b}x", "/a/{1}", "/a/{other}", "/a/{key}"],
)
def test_refuses_a_template(template: str) -> None:
    """A malformed template, or one that another already stands for, is refused at registration."""
    with pytest.raises(ValueError, match="path template"):
        paths("/a/{key}").add(template, template)
