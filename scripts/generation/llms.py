"""`llms.txt`: the pages of the documentation, each in a line, for language models and other tools.

The repository's names the sources, that of the site its pages. Both follow the contents in
docs/index.md, so there is nothing to keep in step.
"""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

DOCS = Path(__file__).parents[2] / "docs"
_TOCTREE = re.compile(r"^```\{toctree\}\n(.*?)^```", re.DOTALL | re.MULTILINE)


class Section(NamedTuple):
    """A part of the contents."""

    caption: str
    pages: list[str]
    """Paths below `docs`, without an ending."""


def repository() -> str:
    """The file in the repository."""
    return document(lambda page: f"docs/{page}.md")


def document(link: Callable[[str], str]) -> str:
    """The whole file.

    Args:
        link: from a page's path below `docs`, without an ending, to where it is.
    """
    lines = [
        "# tidelog",
        "",
        f"> {_about('index')} {_promise()}",
        "",
        "Every command and program on these pages is run by a test.",
    ]
    for section in _contents():
        lines += ["", f"## {section.caption}", ""]
        lines += [f"- [{_title(page)}]({link(page)}): {_about(page)}" for page in section.pages]
    return "\n".join(lines) + "\n"


def _contents() -> Iterator[Section]:
    """The contents in their order; a page that two patterns name comes once."""
    seen: set[str] = set()
    for block in _TOCTREE.findall(_text("index")):
        caption = re.search(r"^:caption: (.*)$", block, re.MULTILINE)
        assert caption is not None
        named = [line for line in block.splitlines() if line and not line.startswith(":")]
        found = [page for name in named for page in _matching(name)]
        pages = [page for page in dict.fromkeys(found) if page not in seen]
        seen.update(pages)
        yield Section(caption[1], pages)


def _matching(name: str) -> list[str]:
    paths = sorted(DOCS.glob(f"{name}.md"))
    return [str(path.relative_to(DOCS).with_suffix("")) for path in paths]


def _text(page: str) -> str:
    return (DOCS / f"{page}.md").read_text(encoding="utf-8")


def _title(page: str) -> str:
    found = re.search(r"^# (.+)$", _text(page), re.MULTILINE)
    return found[1] if found else page.rpartition("/")[2].capitalize()


def _promise() -> str:
    """What is quoted on the first page."""
    quoted = [line.removeprefix("> ") for line in _text("index").splitlines() if line[:1] == ">"]
    return " ".join(quoted).replace("**", "")


def _about(page: str) -> str:
    """The first sentence below a page's title, without links; its title if there is none."""
    introduction = re.split(r"^## ", _text(page), flags=re.MULTILINE)[0]
    for paragraph in re.split(r"\n\s*\n", introduction):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(paragraph.split()))
        if plain[:1].isalnum() and not plain.startswith("Read next"):
            return re.split(r"(?<=[.!?])\s", plain.replace("**", ""))[0]
    return f"{_title(page)}."
