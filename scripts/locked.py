#!/usr/bin/env python3
"""Prints the part of requirements.lock that tidelog with some of its extras needs, hashes and all.

    python3 scripts/locked.py                # the core
    python3 scripts/locked.py pipeline       # the core and an extra

`uv pip compile` notes below each package which others asked for it. Following these notes from what
pyproject.toml names gives the part, so there is one lock and nothing to keep in step with it. Only
the standard library is used: `scripts/install` runs this before anything is installed.
"""

import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]


class Locked(NamedTuple):
    """One version of one package in the lock."""

    name: str
    asked_by: frozenset[str]
    text: str
    """Its lines, with hashes and notes."""


def normal(name: str) -> str:
    """A package's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def entries(lock: str) -> Iterator[Locked]:
    """Every entry of a lock file, in its order."""
    for text in re.split(r"^(?=\S)", lock, flags=re.MULTILINE):
        if not text.strip():
            continue
        name, _, _ = text.partition("==")
        _, _, notes = text.partition("# via")
        asked_by = re.findall(r"^[\s#]*([\w.-]+)", notes, flags=re.MULTILINE)
        yield Locked(normal(name), frozenset(map(normal, asked_by)), text)


def named(project: str, extras: list[str]) -> set[str]:
    """The packages that pyproject.toml names for the core and these extras."""
    table = tomllib.loads(project)["project"]
    known = table["optional-dependencies"]
    if unknown := set(extras) - set(known):
        sys.exit(f"locked: there is no extra {', '.join(sorted(unknown))}; {', '.join(known)} are")
    lines = [*table["dependencies"], *(line for extra in extras for line in known[extra])]
    return {normal(re.split(r"[^\w.-]", line, maxsplit=1)[0]) for line in lines}


def part(lock: str, project: str, extras: list[str]) -> list[Locked]:
    """The entries of a lock that the core and these extras need, directly or not."""
    found = list(entries(lock))
    wanted = named(project, extras)
    while more := {each.name for each in found if each.asked_by & wanted} - wanted:
        wanted |= more
    if missing := wanted - {each.name for each in found}:
        sys.exit(f"locked: requirements.lock lacks {', '.join(sorted(missing))}; compile it again")
    return [each for each in found if each.name in wanted]


def main() -> None:
    """Print the part."""
    lock, project = (
        (ROOT / name).read_text(encoding="utf-8")
        for name in ("requirements.lock", "pyproject.toml")
    )
    sys.stdout.write("".join(each.text for each in part(lock, project, sys.argv[1:])))


if __name__ == "__main__":
    main()
