"""`examples/chat`: a chat with FastAPI and with Flask, on two devices in a real Chromium."""

import asyncio
import re
import shutil
import signal
import socket
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, expect

from support.dashboard.browser import WAIT_MS, Console
from tidelog.client import ChannelPublisher, Message
from tidelog.testing.process import ServerProcess

pytestmark = pytest.mark.asyncio(loop_scope="session")

EXAMPLE = Path(__file__).parents[2] / "examples" / "chat"
PROGRAMS = {"fastapi": "pip install fastapi uvicorn", "flask": "pip install flask"}
MAX_LINES = 90

SHORT = "Why does the tide come in?"
LONG = " ".join(map(str, range(1500)))
"""Whose answer takes minutes: it does not end before it is stopped, however slow the machine."""

expect.set_options(timeout=WAIT_MS)


class Chat(NamedTuple):
    """A running example."""

    name: str
    address: str
    channel: str
    program: Process

    async def messages(self, server: ServerProcess) -> tuple[Message, ...]:
        """What its channel holds."""
        async with ChannelPublisher(server.url, "app-id", "app-key", "app-secret") as publisher:
            page = await publisher.history(self.channel, direction="oldest_first")
        return tuple(page.items)


def reasons(messages: tuple[Message, ...]) -> list[str]:
    """How the runs among these ended."""
    ends = [each.extras["ai"]["transport"] for each in messages if each.name == "ai-run-end"]
    return [end["run-reason"] for end in ends]


def answer_to(question: str) -> str:
    """What the examples' model says."""
    return f"You asked: {question} The moon pulls the sea. "


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ServerProcess]:
    """`tidelog serve --dev`, for both examples."""
    data_dir = tmp_path_factory.mktemp("data")
    with ServerProcess(data_dir=data_dir, arguments=("--dev",)) as process:
        await asyncio.to_thread(process.start)
        yield process


@pytest_asyncio.fixture(scope="module", loop_scope="session", params=PROGRAMS)
async def chat(
    request: pytest.FixtureRequest, server: ServerProcess, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Chat]:
    """The example as its README starts it, but for ports and a user that the other one has not."""
    name: str = request.param
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    user = f"ana-{name}"
    folder = tmp_path_factory.mktemp("example") / "chat"
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("__pycache__"))
    for path in (folder / "page.html", folder / f"{name}_chat.py"):
        text = path.read_text(encoding="utf-8")
        text = text.replace("8080", str(server.port)).replace("8000", str(port))
        path.write_text(text.replace('"ana"', f'"{user}"'), encoding="utf-8")
    program = await asyncio.create_subprocess_exec(
        *(sys.executable, f"{name}_chat.py"), cwd=folder, stderr=asyncio.subprocess.PIPE
    )
    assert program.stderr is not None
    try:
        async with asyncio.timeout(WAIT_MS / 1000):
            while b"unning on http" not in (line := await program.stderr.readline()):
                assert line, "it ended"
        yield Chat(name, f"http://127.0.0.1:{port}", f"private-chat-{user}", program)
    finally:
        if program.returncode is None:
            program.terminate()
        _, said = await program.communicate()
    assert b"Traceback" not in said, said.decode()


async def shown(page: Page, number: int) -> str:
    """The text of an answer as the page shows it now."""
    return await page.locator("p.assistant").nth(number).text_content() or ""


async def grows_beyond(page: Page, number: int, before: str) -> str:
    """Wait for more of an answer than there was; returns what is shown then."""
    longer = re.compile(re.escape(before) + r"\d")
    await expect(page.locator("p.assistant").nth(number)).to_have_text(longer)
    after = await shown(page, number)
    assert answer_to(LONG).startswith(after), "a word is missing, doubled or moved"
    return after


async def test_an_answer_on_two_devices_a_reload_and_a_stop(
    browser: Browser, server: ServerProcess, chat: Chat
) -> None:
    """It grows on both; a reload goes on with the same text; a stop on the second ends it."""
    console = Console()
    contexts = [await browser.new_context() for _ in range(2)]
    first, second = [await context.new_page() for context in contexts]
    for page in (first, second):
        console.watch(page)
        await page.goto(chat.address)
    ask, stop = (first.get_by_role("button", name=name) for name in ("Ask", "Stop"))

    await first.get_by_placeholder("Ask").fill(SHORT)
    await ask.click()
    for page in (first, second):
        answer = page.locator("p.assistant")
        await expect(answer).to_have_attribute("data-status", "complete")
        assert await shown(page, 0) == answer_to(SHORT)
        await expect(page.locator("p.user")).to_have_text(SHORT)
    await expect(stop).to_be_disabled()

    await first.get_by_placeholder("Ask").fill(LONG)
    await ask.click()
    begun = {page: await grows_beyond(page, 1, "You asked: ") for page in (first, second)}
    for page in (first, second):
        await grows_beyond(page, 1, begun[page])
    before = await shown(first, 1)
    await first.reload()
    await grows_beyond(first, 1, before)
    await expect(first.locator("p.assistant").nth(1)).to_have_attribute("data-status", "streaming")
    await expect(stop).to_be_enabled()

    await second.get_by_role("button", name="Stop").click()
    for page in (first, second):
        answer = page.locator("p.assistant").nth(1)
        await expect(answer).to_have_attribute("data-status", "cancelled")
        await expect(page.get_by_role("button", name="Stop")).to_be_disabled()
    kept = await shown(first, 1)
    assert kept == await shown(second, 1)
    assert answer_to(LONG).startswith(kept)
    assert len(before) < len(kept) < len(answer_to(LONG))
    async with asyncio.timeout(WAIT_MS / 1000):
        while len(reasons(messages := await chat.messages(server))) < 2:
            pass
    assert reasons(messages) == ["complete", "cancelled"]
    assert [each.data for each in messages if each.name == "ai-output"] == [answer_to(SHORT), kept]
    for context in contexts:
        await context.close()
    assert console.complaints == []


async def test_a_page_gets_into_no_channel_but_its_own(browser: Browser, chat: Chat) -> None:
    """`/auth` signs for the channel of the user, and refuses every other one."""
    context = await browser.new_context()
    told = {
        channel: await context.request.post(
            f"{chat.address}/auth", data={"channel": channel, "socket_id": "1.2"}
        )
        for channel in (chat.channel, "private-chat-bo")
    }
    assert [response.status for response in told.values()] == [200, 403]
    assert (await told[chat.channel].json())["auth"].startswith("app-key:")
    await context.close()


async def test_ctrl_c_leaves_no_answer_open(
    browser: Browser, server: ServerProcess, chat: Chat
) -> None:
    """FastAPI cancels it, Flask finishes it. The last test of a program, which it ends."""
    question, reason = (LONG, "cancelled") if chat.name == "fastapi" else (SHORT, "complete")
    context = await browser.new_context()
    page = await context.new_page()
    await page.goto(chat.address)
    before = await chat.messages(server)
    await expect(page.locator("p.user")).to_have_count(len(reasons(before)))
    await page.get_by_placeholder("Ask").fill(question)
    await page.get_by_role("button", name="Ask").click()
    await expect(page.get_by_role("button", name="Stop")).to_be_enabled()
    await expect(page.locator("p.assistant")).to_have_count(len(reasons(before)) + 1)
    await expect(page.locator("p.assistant").last).not_to_be_empty()
    chat.program.send_signal(signal.SIGINT)
    async with asyncio.timeout(WAIT_MS / 1000):
        await chat.program.wait()
    after = (await chat.messages(server))[len(before) :]
    assert reasons(after) == [reason]
    await expect(page.locator("p.assistant").last).to_have_attribute("data-status", reason)
    await context.close()


async def test_they_are_short_and_the_readme_says_how() -> None:
    """One file each, and three commands, the last of which is the one that was run here."""
    readme = (EXAMPLE / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```sh\n(.*?)```", readme, re.DOTALL)
    for (name, install), commands in zip(PROGRAMS.items(), blocks, strict=True):
        program = f"{name}_chat.py"
        assert commands.splitlines() == [install, "tidelog serve --dev &", f"python {program}"]
        lines = (EXAMPLE / program).read_text(encoding="utf-8").splitlines()
        assert len(lines) <= MAX_LINES
