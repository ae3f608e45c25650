"""`examples/ai-sdk`: `useChat` over a channel, in a real Chromium."""

import asyncio
import re
import shutil
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, expect

from support import node
from support.dashboard.browser import WAIT_MS
from tidelog.client import ChannelPublisher
from tidelog.testing.process import ServerProcess

pytestmark = pytest.mark.asyncio(loop_scope="session")

EXAMPLE = Path(__file__).parents[2] / "examples" / "ai-sdk"
MAX_LINES = 100

expect.set_options(timeout=WAIT_MS)


async def run(folder: Path, *command: str) -> None:
    """A command that must succeed."""
    process = await asyncio.create_subprocess_exec(*command, cwd=folder)
    assert await process.wait() == 0


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ServerProcess]:
    """`tidelog serve --dev`."""
    data_dir = tmp_path_factory.mktemp("data")
    with ServerProcess(data_dir=data_dir, arguments=("--dev",)) as process:
        await asyncio.to_thread(process.start)
        yield process


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def address(
    server: ServerProcess, tmp_path_factory: pytest.TempPathFactory, free_site_port: int
) -> AsyncIterator[str]:
    """Where the example runs, built as its README says."""
    folder = tmp_path_factory.mktemp("example") / "ai-sdk"
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("node_modules", "page.js"))
    for name in ("page.jsx", "server.py"):
        text = (folder / name).read_text(encoding="utf-8")
        text = text.replace("8080", str(server.port)).replace("8000", str(free_site_port))
        (folder / name).write_text(text, encoding="utf-8")
    home = await asyncio.to_thread(node.installed, EXAMPLE)
    (folder / "node_modules").symlink_to(home / "node_modules")
    _, npm = node.programs()
    await run(folder, *npm, "run", "build", "--silent")
    site = await asyncio.create_subprocess_exec(
        *(sys.executable, "server.py"), cwd=folder, stderr=asyncio.subprocess.PIPE
    )
    assert site.stderr is not None
    try:
        async with asyncio.timeout(WAIT_MS / 1000):
            while b"Uvicorn running" not in (line := await site.stderr.readline()):
                assert line, "it ended"
        yield f"http://127.0.0.1:{free_site_port}"
    finally:
        site.terminate()
        await site.communicate()


@pytest.fixture(scope="module")
def free_site_port() -> int:
    """A port that nobody has at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


async def ask(page: Page, question: str) -> None:
    """Type and press the button."""
    await page.get_by_placeholder("Ask").fill(question)
    await page.get_by_role("button", name="Ask").click()


async def test_an_answer_a_reload_and_a_stop(
    browser: Browser, server: ServerProcess, address: str
) -> None:
    """The answer grows; a reload goes on with it; a stop ends the run of the agent."""
    page = await browser.new_page()
    await page.goto(address)
    await ask(page, "Why does the tide come in?")
    whole = "You asked: Why does the tide come in? The moon pulls the sea. "
    answer = page.locator("p.assistant")
    await expect(answer).to_contain_text("You asked: Why")
    await page.reload()
    await expect(answer).to_have_text(whole)
    await expect(page.locator("p.user")).to_have_text("Why does the tide come in?")
    await expect(page.get_by_role("button", name="Ask")).to_be_enabled()

    await ask(page, "word " * 500)
    await expect(answer.nth(1)).to_contain_text("You asked: word")
    await page.get_by_role("button", name="Stop").click()
    async with (
        asyncio.timeout(WAIT_MS / 1000),
        ChannelPublisher(server.url, "app-id", "app-key", "app-secret") as publisher,
    ):
        reasons: list[str] = []
        while len(reasons) < 2:
            items = (await publisher.history("chat", direction="oldest_first")).items
            ends = [item for item in items if item.name == "ai-run-end"]
            reasons = [item.extras["ai"]["transport"]["run-reason"] for item in ends]
    assert reasons == ["complete", "cancelled"]
    await page.reload()
    await expect(answer).to_have_count(2)
    await expect(answer.first).to_have_text(whole)
    await expect(answer.nth(1)).to_contain_text("You asked: word")
    await page.close()


async def test_the_transport_is_short_and_the_readme_says_how() -> None:
    """At most 100 lines; the commands are those that were run here."""
    transport = (EXAMPLE / "transport.js").read_text(encoding="utf-8")
    assert len(transport.splitlines()) <= MAX_LINES
    readme = (EXAMPLE / "README.md").read_text(encoding="utf-8")
    [commands] = re.findall(r"```sh\n(.*?)```", readme, re.DOTALL)
    assert commands.splitlines() == [
        "tidelog serve --dev &",
        "npm install",
        "npm run build",
        "pip install fastapi uvicorn",
        "python server.py",
    ]
    lock = (EXAMPLE / "package-lock.json").read_text(encoding="utf-8")
    assert "resolved" not in lock
