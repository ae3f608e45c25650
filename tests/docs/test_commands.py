"""Commands that documents name are commands of the program, with options it has."""

import os
import re
import shlex
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
import typer

from support.docs.pages import GENERATED, documents
from support.docs.walk import ROOT, blocks
from tidelog.cli.commands import app

TOP = typer.main.get_command(app)


class Named(NamedTuple):
    """A command line in a document."""

    place: str
    words: tuple[str, ...]


def in_text(document: str) -> Iterator[Named]:
    """Command lines in inline code."""
    text = (ROOT / document).read_text(encoding="utf-8")
    for number, line in enumerate(text.splitlines(), start=1):
        for span in re.findall(r"`((?:tidelog|scripts/)[^`]*)`", line):
            yield Named(f"{document}:{number}", words_of(span.replace("\\|", "|")))


def in_blocks(document: str) -> Iterator[Named]:
    """Command lines in blocks, also inside `$(...)`."""
    for block in blocks(document):
        if block.kind not in ("sh", "indented"):
            continue
        for line in block.text.splitlines():
            for part in re.split(r"\$\(|[|&;)#]", line):
                if found := re.search(r"(?<![\w./-])(?:tidelog |scripts/\w).*", part):
                    yield Named(block.place, words_of(found[0]))


def words_of(text: str) -> tuple[str, ...]:
    """The words of a command line; what is no shell syntax is split at blanks."""
    try:
        return tuple(shlex.split(text.strip()))
    except ValueError:
        return tuple(text.split())


def options_of(command: Any) -> set[str]:
    """How the options of a command are spelled."""
    return {"--help"} | {
        spelling
        for parameter in command.params
        for spelling in (*parameter.opts, *parameter.secondary_opts)
        if spelling.startswith("-")
    }


def problem(words: tuple[str, ...]) -> str | None:
    """What is wrong with a command line that names the program or a script, or None."""
    first, *rest = words
    if first.startswith("scripts/"):
        path = ROOT / first
        return None if path.is_file() and os.access(path, os.X_OK) else "there is no such script"
    if first != "tidelog":
        return None  # `tidelog.read`, `tidelog_commit_seconds`
    command: Any = TOP
    while rest and rest[0] in getattr(command, "commands", {}):
        command = command.commands[rest.pop(0)]
    if hasattr(command, "commands") and rest and re.fullmatch(r"[a-z-]+", rest[0]):
        if rest[0].startswith("-"):
            return None if rest[0] in options_of(command) else f"no option {rest[0]}"
        return f"no command {rest[0]}"
    known = options_of(command)
    for word in rest:
        spelling = word.strip("[]()").partition("=")[0]
        if re.fullmatch(r"--[a-z][a-z-]*|-[a-z]", spelling) and spelling not in known:
            return f"no option {spelling}"
    return None


@pytest.mark.parametrize("document", documents())
def test_commands_exist(document: str) -> None:
    """Every `tidelog ...` and `scripts/...` in the text and in blocks is one that can be typed."""
    wrong = [
        f"{named.place}: {' '.join(named.words)}: {found}"
        for named in (*in_text(document), *in_blocks(document))
        if (found := problem(named.words))
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("document", documents())
def test_no_job_is_named_by_its_number(document: str) -> None:
    """`%2` is another job, or none, in the shell of a reader who has jobs of their own."""
    lines = [
        f"{block.place}: {line}"
        for block in blocks(document)
        if block.kind == "sh"
        for line in block.text.splitlines()
        if re.search(r"\b(?:kill|wait|fg|bg)\b.* %", line)
    ]
    assert not lines


@pytest.mark.parametrize("document", documents())
def test_nothing_is_installed_that_is_not_published(document: str) -> None:
    """A page sends nobody to a package index for tidelog: there is a clone, and scripts/install."""
    if not document.startswith(GENERATED):
        text = (ROOT / document).read_text(encoding="utf-8")
        assert not re.findall(r"pip install [^`\n]*tidelog", text)


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("tidelog serve --dev --port 0", None),
        ("tidelog mesh outbox requeue --id ROW (--auto | --new-client-id ID)", None),
        ("tidelog serv", "no command serv"),
        ("tidelog log tail --last 3", "no option --last"),
        ("scripts/tset", "there is no such script"),
        ("tidelog.toml", None),
    ],
)
def test_a_wrong_command_is_noticed(line: str, complaint: str | None) -> None:
    """The check itself tells right from wrong."""
    assert problem(words_of(line)) == complaint


def test_commands_are_found() -> None:
    """Text, blocks and substitutions are all looked at."""
    page = "docs/howto/mesh-two-daemons.md"
    assert {("tidelog", "serve", "--dev"), ("tidelog", "mesh", "invite", "harbour")} <= {
        named.words for named in in_blocks(page)
    }
    assert ("tidelog", "daemon", "status") in {named.words for named in in_text(page)}
