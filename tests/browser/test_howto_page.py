"""The page of docs/howto/stream-llm-answer.md, with the program of the same how-to, in Chromium."""

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from playwright.async_api import Browser, expect

from support.docs.walk import DOCUMENTED_PORT, blocks
from tidelog.testing.process import ServerProcess

pytestmark = pytest.mark.asyncio(loop_scope="session")

DOCUMENT = "docs/howto/stream-llm-answer.md"
QUESTION = "Why does the tide come in?"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    """As the how-to starts it."""
    with ServerProcess(data_dir=tmp_path / "data", arguments=("--dev",)) as process:
        process.start()
        yield process


@pytest.fixture
def pages(tmp_path: Path) -> Iterator[str]:
    """What serves the page's folder; its address."""
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as serving:
        threading.Thread(target=serving.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{serving.server_port}"
        serving.shutdown()


async def test_the_page_shows_question_and_answer(
    server: ServerProcess, pages: str, browser: Browser, tmp_path: Path
) -> None:
    """The text grows in the page, and is whole when the program ends."""
    found = blocks(DOCUMENT)
    [page_text] = [block.text for block in found if block.kind == "html"]
    program = next(block.text for block in found if "ChannelPublisher" in block.text)
    [answer] = [line.split('"')[1] for line in program.splitlines() if line.startswith("ANSWER")]
    own = page_text.replace(DOCUMENTED_PORT, str(server.port))
    (tmp_path / "page.html").write_text(own, encoding="utf-8")
    page = await browser.new_page()
    await page.goto(f"{pages}/page.html")
    command = [sys.executable, "-c", program, server.url, QUESTION]
    ended = await asyncio.to_thread(subprocess.run, command, check=True, timeout=60)
    assert ended.returncode == 0
    shown = page.locator("#chat")
    await expect(shown).to_have_text(f"question: {QUESTION}answer: {answer}")
    await page.close()
