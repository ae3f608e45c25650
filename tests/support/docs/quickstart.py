"""The README's lines as somebody runs them: install, serve, open the page, stream the answer.

The README has three `sh` blocks for it, in this order (the first may be left out where tidelog is
installed), and two blocks whose fences name files: `page.html` and `answer.py`.
"""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from support.docs.walk import DOCUMENTED_PORT, blocks

DOCUMENT = "README.md"
DOCUMENTED_PAGE_PORT = "8000"
READY = "tidelog is ready at"


class Quickstart:
    """One reader's copy of the lines, in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        """Write the files that the README names, with ports that are free.

        Args:
            folder: where the reader works: a clone, if it is to be installed from.
        """
        run = [block for block in blocks(DOCUMENT) if not block.why_not]
        with socket.socket() as one, socket.socket() as other:
            for probe in (one, other):
                probe.bind(("127.0.0.1", 0))
            self._port, self._page_port = one.getsockname()[1], other.getsockname()[1]
        self.folder = folder
        self.files = {block.name: self._here(block.text) for block in run if block.name}
        self.install, self.serve, self.answer = (
            self._here(block.text) for block in run if block.kind == "sh"
        )
        for name, text in self.files.items():
            (folder / name).write_text(text, encoding="utf-8")

    @property
    def server(self) -> str:
        """Address of the server."""
        return f"http://127.0.0.1:{self._port}"

    @property
    def page(self) -> str:
        """Address of the page."""
        return f"http://127.0.0.1:{self._page_port}/page.html"

    @property
    def expected(self) -> str:
        """The whole answer, as the program has it word by word."""
        found = re.search(r'"([^"]+)"\.split\(', self.files["answer.py"])
        assert found is not None
        return " ".join(found[1].split())

    def installed(self, seconds: float) -> Path:
        """Run the lines that install; returns the folder of the programs."""
        subprocess.run(
            ["bash", "-ec", self.install],
            cwd=self.folder,
            env=self._environment(None),
            check=True,
            timeout=seconds,
            stdout=sys.stderr,
        )
        return self.folder / ".venv/bin"

    @contextmanager
    def serving(self, programs: Path) -> Iterator[None]:
        """Serve for as long as the block lasts; it begins when the server says that it is ready."""
        with subprocess.Popen(
            ["bash", "-ec", f"{self.serve}\nwait"],
            cwd=self.folder,
            env={**self._environment(programs), "TIDELOG_PORT": str(self._port)},
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        ) as process:
            try:
                assert process.stdout is not None
                assert any(READY in line for line in process.stdout), "the server did not start"
                self._await_page()
                yield
            finally:
                os.killpg(process.pid, signal.SIGTERM)

    def _await_page(self) -> None:
        """Wait until the page is served; a reader is slower than that."""
        while True:
            with suppress(OSError), socket.create_connection(("127.0.0.1", self._page_port)):
                return
            time.sleep(0.05)

    def answering(self, programs: Path) -> "subprocess.Popen[bytes]":
        """Start the program that streams."""
        return subprocess.Popen(
            ["bash", "-ec", self.answer], cwd=self.folder, env=self._environment(programs)
        )

    def _here(self, text: str) -> str:
        own = text.replace(DOCUMENTED_PORT, str(self._port))
        return own.replace(DOCUMENTED_PAGE_PORT, str(self._page_port))

    def _environment(self, programs: Path | None) -> dict[str, str]:
        """The machine's, without what tests and their tools set."""
        plain = {
            name: text
            for name, text in os.environ.items()
            if not name.startswith(("TIDELOG_", "PYTHON", "VIRTUAL_ENV"))
        }
        return plain if programs is None else plain | {"PATH": f"{programs}:{plain['PATH']}"}
