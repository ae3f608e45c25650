"""Every command with its arguments and options, as `--help` shows them."""

import inspect
import re
from collections.abc import Iterator
from typing import Any

import typer
from scripts.generation.markdown import NOTE, code, joined, table

from tidelog.cli.commands import app

INTRODUCTION = """\
`tidelog COMMAND --help` shows the same in a terminal. Every command prints JSON with `--json`.
Exit codes: 0 success, 1 failure, 2 wrong usage or configuration, 130 interrupted."""


def page() -> str:
    """The page of all commands."""
    parts = [NOTE, "# Commands", INTRODUCTION]
    top = typer.main.get_command(app)
    for path, command in _below(top, ()):
        parts += _section(("tidelog", *path), command)
    return joined(parts)


def _below(command: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, inner in getattr(command, "commands", {}).items():
        if inner.hidden:
            continue
        yield (*path, name), inner
        yield from _below(inner, (*path, name))


def _section(path: tuple[str, ...], command: Any) -> list[str]:
    said, example = _words(command)
    parts = ["#" * min(len(path), 4) + " " + code(" ".join(path)), said]
    shown = [one for one in command.params if not getattr(one, "hidden", False)]
    if not shown:
        return parts
    context = command.context_class(command, info_name=path[-1])
    pieces = [piece for one in shown for piece in one.get_usage_pieces(context)]
    parts.append(f"Usage: {code(' '.join([*path, *pieces, '[OPTIONS]']))}")
    if example:
        parts.append(f"Example: {code(example)}")
    rows = [one.get_help_record(context) for one in shown]
    parts.append(
        table(
            ("argument or option", "meaning"),
            [(code(spelled), _escaped(meaning)) for spelled, meaning in rows],
        )
    )
    return parts


def _words(command: Any) -> tuple[str, str]:
    """What the command does, and its example."""
    text = inspect.cleandoc(command.help or "").replace("\f", "\n")
    epilog = command.epilog or ""
    examples = re.findall(r"Examples?: (.+?)(?:\n\n|\Z)", f"{text}\n\n{epilog}", re.DOTALL)
    said = re.sub(r"\s*Examples?: (.+?)(\n\n|\Z)", r"\2", text, flags=re.DOTALL)
    return _escaped(said.strip()), " ".join(examples[0].split()) if examples else ""


def _escaped(text: str) -> str:
    """Help is plain text: what looks like Markdown in it, but for backquotes, is meant as it is."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(
        part if part.startswith("`") else re.sub(r"([*_<>\[\]$])", r"\\\1", part) for part in parts
    )
