"""The playground of `tidelog serve --dev` in a real Chromium, as whoever opens it first."""

import asyncio
import os
import re
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Literal

import httpx
import pytest
import pytest_asyncio
from playwright.async_api import Locator, Page, expect

from support import node
from support.dashboard.browser import DESKTOP, PHONE, Console, serious_problems
from tidelog.testing.process import ServerProcess

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ServerProcess]:
    """A server as `tidelog serve --dev` starts it, without any configuration."""
    data_dir = tmp_path_factory.mktemp("playground")
    with ServerProcess(data_dir=data_dir, arguments=("--dev",)) as made:
        await asyncio.to_thread(made.start)
        yield made


@pytest_asyncio.fixture(loop_scope="session")
async def playground(page: Page, server: ServerProcess) -> Page:
    """Its page, with both panes connected."""
    await page.goto(server.url)
    for name in ("ada", "bo"):
        await expect(pane(page, name)).to_have_attribute("data-state", "connected")
        await expect(tasks(page, name)).to_have_attribute("data-state", "online")
    return page


def pane(page: Page, name: str) -> Locator:
    """What one device sees of the channel."""
    return page.locator(f'[data-pane="{name}"]')


def tasks(page: Page, name: str) -> Locator:
    """One of the two task lists."""
    return page.locator(f'[data-list="{name}"]')


async def sample(page: Page, card: str, language: str) -> str:
    """The lines that a card shows in a language."""
    await page.locator(f"#{card}").get_by_role("tab", name=language).click()
    return await page.locator(f"#{card} pre").text_content() or ""


async def run(tmp_path: Path, command: list[str], code: str) -> str:
    """Run lines of the page as somebody would who copied them; returns what they printed."""
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=tmp_path,
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    printed, complained = await process.communicate(code.encode())
    assert process.returncode == 0, complained.decode()
    return printed.decode()


async def test_an_answer_grows_and_the_other_device_stops_it(playground: Page) -> None:
    """Both panes show the same growing text; stop ends it for both, and says so."""
    await playground.locator("#stream").click()
    for name in ("ada", "bo"):
        await expect(pane(playground, name).locator(".message.streaming")).to_contain_text(
            "I am no model"
        )
    await playground.locator("#stop").click()
    texts = []
    for name in ("ada", "bo"):
        ended = pane(playground, name).locator('.message[data-status="cancelled"]')
        await expect(ended).to_have_count(1)
        texts.append(await ended.locator(".text").text_content())
    assert texts[0] == texts[1] != ""
    assert "keep the rest" not in (texts[0] or "")


async def test_a_pane_that_was_cut_off_catches_up(playground: Page) -> None:
    """What is published while a pane is cut off comes when it connects again, and it says so."""
    ada, bo = pane(playground, "ada"), pane(playground, "bo")
    await bo.get_by_role("button", name="Cut").click()
    await expect(bo).to_have_attribute("data-state", "disconnected")
    await playground.locator("#question").fill("while bo is away")
    await playground.locator("#publish").click()
    await expect(ada.locator(".message").last).to_contain_text("while bo is away")
    assert "while bo is away" not in (await bo.text_content() or "")
    await bo.get_by_role("button", name="Connect").click()
    await expect(bo.locator(".message").last).to_contain_text("while bo is away")
    await expect(bo.locator(".told")).to_contain_text("missed came, in order")


async def test_stop_also_works_while_the_other_device_is_cut_off(playground: Page) -> None:
    """The button then speaks for the one that is connected; a press is never without effect."""
    ada, bo = pane(playground, "ada"), pane(playground, "bo")
    before = await ada.locator('.message[data-status="cancelled"]').count()
    await bo.get_by_role("button", name="Cut").click()
    await playground.locator("#stream").click()
    await expect(ada.locator(".message.streaming")).to_contain_text("I am no model")
    await playground.locator("#stop").click()
    await expect(ada.locator('.message[data-status="cancelled"]')).to_have_count(before + 1)
    await ada.get_by_role("button", name="Cut").click()
    await playground.locator("#publish").click()
    await expect(ada.locator(".told")).to_contain_text("is sent when ada is connected again")


async def test_what_is_written_offline_waits_and_is_committed(
    playground: Page, server: ServerProcess, console: Console
) -> None:
    """A draft survives a reload and the kill of the server, and then both lists agree."""
    ada, bo = tasks(playground, "ada"), tasks(playground, "bo")
    await ada.get_by_role("button", name="Go offline").click()
    await ada.get_by_label("A task of ada").fill("Buy milk")
    await ada.get_by_role("button", name="Add").click()
    await expect(ada.locator(".told")).to_contain_text("1 draft waits")
    await bo.get_by_label("A task of bo").fill("Call ada")
    await bo.get_by_role("button", name="Add").click()
    await expect(bo.locator(".told")).to_have_text(re.compile(r"All committed, .* [1-9]\d*\."))
    # Each is what a page says while its server is away; how long that is depends on the machine.
    away = ("ERR_CONNECTION_REFUSED", "WebSocket connection", "The server does not answer")
    console.ignored = away
    await asyncio.to_thread(server.kill)
    await asyncio.to_thread(server.start)
    await playground.reload()
    for each in (ada, bo):
        await expect(each.locator(".task label")).to_have_text(["Call ada", "Buy milk"])
        await expect(each.locator(".told")).to_contain_text("All committed")
    await bo.get_by_role("checkbox", name="Buy milk").check()
    await expect(ada.get_by_role("checkbox", name="Buy milk")).to_be_checked()


async def test_a_mesh_send_arrives_once(playground: Page) -> None:
    """Whoever presses send first has two daemons started, and one sends to the other."""
    await playground.locator("#mesh-send").click()
    inbox = playground.locator('[data-daemon="bo"] li')
    await expect(inbox).to_have_text(["The tide is coming in"])
    await expect(playground.locator('[data-daemon="ada"] .told')).to_contain_text("done")


async def test_the_lines_beside_it_do_it(playground: Page, tmp_path: Path) -> None:
    """Every sample runs as it is shown, and what it did is seen in the page."""
    await run(tmp_path, [sys.executable, "-"], await sample(playground, "channels", "Python"))
    await run(tmp_path, ["bash", "-e"], await sample(playground, "channels", "curl"))
    for text in ("hello from Python", "An answer grows word by word.", "hello from curl"):
        await expect(pane(playground, "bo")).to_contain_text(text)
    await run(tmp_path, [sys.executable, "-"], await sample(playground, "sync", "Python"))
    await expect(tasks(playground, "ada")).to_contain_text("A task from Python")
    told = await run(tmp_path, ["bash", "-e"], await sample(playground, "sync", "curl"))
    assert "A task from Python" in told
    shell = await sample(playground, "mesh", "Shell")
    python = await sample(playground, "mesh", "Python")
    curl = await sample(playground, "mesh", "curl")
    mesh = (
        f"{shell}\ntrap 'kill %1' EXIT\n"
        "until [ -S ./carol/daemon.sock ]; do sleep 0.1; done\n"
        f"python - <<'END'\n{python}\nEND\n{curl}"
    )
    assert "order-18" in await run(tmp_path, ["bash", "-e"], mesh)


async def test_the_javascript_beside_it_does_it(playground: Page) -> None:
    """The lines of JavaScript run in a page that another server of this machine serves."""
    code = [await sample(playground, card, "JavaScript") for card in ("channels", "sync")]
    scripts = "".join(f'<script type="module">{each}</script>' for each in code)

    async def give(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        head = "HTTP/1.1 200 OK\r\ncontent-type: text/html\r\nconnection: close\r\n\r\n"
        writer.write(f'{head}<p id="answer"></p>{scripts}'.encode())
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(give, "127.0.0.1") as other:
        elsewhere = await playground.context.new_page()
        await elsewhere.goto(f"http://localhost:{other.sockets[0].getsockname()[1]}/")
        await expect(tasks(playground, "ada")).to_contain_text("A task from JavaScript")
        await playground.locator("#question").fill("for the other page")
        await playground.locator("#publish").click()
        await expect(elsewhere.locator("#answer")).to_have_text("for the other page")


async def test_only_its_own_page_may_have_something_done(server: ServerProcess) -> None:
    """Another page of this machine starts no daemons and asks no questions."""
    elsewhere = {"origin": "http://localhost:3000", "x-tidelog-dashboard": "1"}
    async with httpx.AsyncClient(
        base_url=f"{server.url}/playground", headers=elsewhere, verify=False
    ) as other:
        for path in ("answers", "daemons", "sends"):
            assert (await other.post(f"/{path}", json={})).status_code == 403, path


@pytest.mark.parametrize("theme", ["light", "dark"])
async def test_it_fits_a_phone_and_axe_finds_nothing(
    playground: Page, artefacts: Path, theme: Literal["light", "dark"]
) -> None:
    """Nothing serious on a desktop or on a phone, in both themes."""
    axe = await asyncio.to_thread(node.axe_source)
    await playground.emulate_media(color_scheme=theme)
    for name, size in (("desktop", DESKTOP), ("phone", PHONE)):
        await playground.set_viewport_size(size)
        await playground.screenshot(
            path=artefacts / f"playground-{theme}-{name}.png", full_page=True
        )
        assert await serious_problems(playground, axe, theme) == [], name
        wide = await playground.evaluate("document.documentElement.scrollWidth - innerWidth")
        assert wide <= 0, "it scrolls sideways"
