"""A document as a walk: all of its commands in one shell, in order, as printed.

| Block | What is done |
|---|---|
| ` ```sh ` | run; a command that fails ends the walk |
| ` ```toml tidelog.toml `, ` ```python watch.py ` ... | written to the file the fence names |
| ` ```python ` without a name | a cell of a notebook: run, with the names that earlier cells made |
| ` ```text ` | must be what the commands before it print; `...` stands for anything |

A block of another kind is not part of a walk, nor is one after the comment `<!-- not run: why -->`.
After a server was started in the background the walk waits until it says that it is ready, as a
reader does.
"""

import doctest
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from markdown_it import MarkdownIt

from support.warm import NURSERY

ROOT = Path(__file__).parents[3]
COMPARED = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
DOCUMENTED_PORT = "8080"
SERVER = re.compile(r"tidelog serve\b.*&\s*")
RUN = ("sh", "python")
"""Kinds of blocks that are run if their fence names no file."""

NOTEBOOK = """\
import contextlib
names = {{}}
for place, cell, output in {cells!r}:
    with open("walk-at", "w") as at:
        print(place, file=at)
    with open(output, "w", encoding="utf-8") as file, contextlib.redirect_stdout(file):
        exec(cell, names)
"""

_NOT_RUN = re.compile(r"<!-- not run: (\S.*) -->")

START_TENTHS = 600
"""A busy machine takes seconds to start a server."""


class Block(NamedTuple):
    """A fenced or indented block of a document."""

    document: str
    """Path from the root of the repository."""
    line: int
    kind: str
    """First word of the fence; empty if it has none, `indented` for a block without a fence."""
    name: str
    """Second word of the fence: the file the block is the content of."""
    text: str
    mark: str = ""
    """The comment right before it."""

    @property
    def why_not(self) -> str:
        """Why it is not run, as the page says; empty if it is."""
        found = _NOT_RUN.fullmatch(self.mark)
        return found[1] if found else ""

    @property
    def place(self) -> str:
        """Where it is, as editors open it."""
        return f"{self.document}:{self.line}"


def blocks(document: str) -> list[Block]:
    """Every block of a document, in order."""
    text = (ROOT / document).read_text(encoding="utf-8")
    found = []
    mark = ""
    for token in MarkdownIt("commonmark").parse(text):
        if token.type in ("fence", "code_block"):
            kind, _, name = token.info.strip().partition(" ")
            kind = kind if token.type == "fence" else "indented"
            line = token.map[0] + 1 if token.map else 0
            found.append(Block(document, line, kind, name.strip(), token.content, mark))
        mark = token.content.strip() if token.type == "html_block" else ""
    return found


def shell_path() -> str:
    """`PATH` of a reader's shell; its `tidelog` has been imported already."""
    return f"{NURSERY.commands()}:{Path(sys.executable).parent}:{os.environ['PATH']}"


class Walk:
    """One run of a document's commands in a folder of its own."""

    def __init__(self, document: str, folder: Path, port: int) -> None:
        self._blocks = [block for block in blocks(document) if not block.why_not]
        self._folder = folder
        self._port = port

    def run(self, seconds: float, environment: Mapping[str, str] | None = None) -> list[str]:
        """Run all of it; returns what each block that ran printed on standard output.

        Processes that the document starts and does not end are killed.
        """
        script = "\n".join(self._steps())
        path = shell_path()
        with (self._folder / "walk.log").open("w") as log:
            shell = subprocess.Popen(
                ["bash", "-e", "-c", script],
                cwd=self._folder,
                env=os.environ
                | {"PATH": path, "TIDELOG_PORT": str(self._port)}
                | dict(environment or {}),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
            try:
                code = shell.wait(seconds)
            finally:
                with suppress(ProcessLookupError):  # all of it has ended
                    os.killpg(shell.pid, signal.SIGKILL)
                shell.wait()
        told = (self._folder / "walk.log").read_text(encoding="utf-8")[-3000:]
        printed = self._printed()
        assert code == 0, f"{self._last()} failed: {told}\n{printed[-1:]}"
        self._compare()
        return printed

    def _here(self, text: str) -> str:
        return text.replace(DOCUMENTED_PORT, str(self._port))

    def _output(self, number: int) -> Path:
        return self._folder / f"walk-{number}.out"

    def _steps(self) -> Iterator[str]:
        """What the shell does; `walk-at` notes how far it is."""
        cells: list[tuple[str, str, str]] = []
        for number, block in enumerate(self._blocks):
            if block.name:
                (self._folder / "walk-files").mkdir(exist_ok=True)
                kept = self._folder / "walk-files" / str(number)
                kept.write_text(self._here(block.text), encoding="utf-8")
                yield f"cp {kept} {block.name}"
            elif block.kind in RUN:
                if block.kind == "python":
                    cells.append((block.place, self._here(block.text), self._output(number).name))
                    if not self._has_another_cell(number):
                        yield self._notebook(number, cells)
                        cells = [(place, text, os.devnull) for place, text, _ in cells]
                    continue
                yield f"echo {block.place} > walk-at"
                commands = self._patient(number, block.text)
                yield "\n".join(["{", *commands, f"}} > {self._output(number)}"])

    def _patient(self, number: int, commands: str) -> Iterator[str]:
        """The commands of a block, with a wait after each server that is started."""
        started = 0
        for line in self._here(commands).splitlines():
            yield line
            if SERVER.fullmatch(line):
                started += 1
                ready = f'"$(grep -c "tidelog is ready" {self._output(number)})" -ge {started}'
                yield f"for _ in $(seq {START_TENTHS}); do [ {ready} ] && break; sleep 0.1; done"

    def _has_another_cell(self, number: int) -> bool:
        """Whether the next thing that is done after this cell is another one."""
        after = [b for b in self._blocks[number + 1 :] if b.kind in RUN or b.name]
        return bool(after) and after[0].kind == "python" and not after[0].name

    def _notebook(self, number: int, cells: list[tuple[str, str, str]]) -> str:
        """All cells so far; what each prints goes where its third item says."""
        notebook = self._folder / f"walk-{number}.py"
        notebook.write_text(NOTEBOOK.format(cells=cells), encoding="utf-8")
        return f"python {notebook}"

    def _last(self) -> str:
        return (self._folder / "walk-at").read_text(encoding="utf-8").strip()

    def _printed(self) -> list[str]:
        outputs = (self._output(number) for number in range(len(self._blocks)))
        return [path.read_text(encoding="utf-8") for path in outputs if path.exists()]

    def _compare(self) -> None:
        """Hold each block of output against what the commands before it printed."""
        checker = doctest.OutputChecker()
        got = ""
        for number, block in enumerate(self._blocks):
            if block.kind in RUN and not block.name:
                got = self._output(number).read_text(encoding="utf-8")
            elif block.kind == "text":
                want = self._here(block.text)
                assert checker.check_output(want, got, COMPARED), (
                    f"{block.place} says\n{want}\nand the commands printed\n{got}"
                )
