"""The changelog keeps its form, and each line of it names the test that shows it."""

import re
from pathlib import Path

import tidelog

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
KINDS = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security", "Not shown"}


def releases() -> dict[str, str]:
    """The text of each release, newest first."""
    parts = re.split(r"^## \[(.+?)\].*$", TEXT, flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


def test_the_version_of_the_package_has_a_section() -> None:
    """One under development is what is not released yet, and is named there; else the newest."""
    unreleased, *released = releases()
    assert unreleased == "Unreleased"
    if ".dev" in tidelog.__version__:
        assert f"`{tidelog.__version__}`" in releases()[unreleased]
        assert tidelog.__version__.partition(".dev")[0] not in released
    else:
        assert released[0] == tidelog.__version__


def test_every_line_names_a_test_that_exists() -> None:
    """A claim is a line under a heading of the known kinds, with the path of its test."""
    for version, text in releases().items():
        assert set(re.findall(r"^### (.+)$", text, re.MULTILINE)) <= KINDS
        claims = text.partition("### Not shown")[0]
        for line in re.findall(r"^- .*$", claims, re.MULTILINE):
            named = re.findall(r"`(tests/[\w/.]+)`", line)
            assert named, f"{version}: {line}"
            for path in named:
                assert (ROOT / path).is_file(), path
