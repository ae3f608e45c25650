"""The README's lines, alone, in a real Chromium: an answer grows in a page."""

import asyncio
import shutil
from pathlib import Path

import pytest
from playwright.async_api import Browser, Page, expect

from support.dashboard.browser import Console
from support.docs.quickstart import Quickstart
from support.docs.walk import ROOT

INSTALL_SECONDS = 900.0
"""An empty cache means some megabytes over the network, on a machine that does other things too."""

NOTE_STATES = """() => {
  const pane = document.querySelector("#answer");
  window.states = [pane.textContent];
  new MutationObserver(() => window.states.push(pane.textContent))
    .observe(pane, { childList: true, characterData: true, subtree: true });
}"""


@pytest.fixture
def quickstart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Quickstart:
    """What a reader has: a clone, and the files that the README names in README.md."""
    monkeypatch.setenv("PIP_NO_COMPILE", "1")  # half of the time; what is imported is compiled then
    for name in ("LICENSE", "README.md", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    return Quickstart(tmp_path)


async def opened(browser: Browser, quickstart: Quickstart, console: Console) -> Page:
    """The page on a device of its own, once it is connected."""
    console.ignored = ("404 (File not found)",)  # browsers ask for an icon
    page = await (await browser.new_context()).new_page()
    console.watch(page)
    async with page.expect_websocket() as connecting:
        await page.goto(quickstart.page)
    await (await connecting.value).wait_for_event("framereceived")
    await page.evaluate(NOTE_STATES)
    return page


@pytest.mark.asyncio(loop_scope="session")
async def test_an_answer_grows_in_the_page(
    quickstart: Quickstart, browser: Browser, console: Console
) -> None:
    """Installed, served, opened and run as printed; a refresh and a second device agree."""
    programs = await asyncio.to_thread(quickstart.installed, INSTALL_SECONDS)
    with quickstart.serving(programs):
        first = await opened(browser, quickstart, console)
        answering = quickstart.answering(programs)
        try:
            pane = first.locator("#answer")
            await expect(pane).to_contain_text("The moon")
            second = await opened(browser, quickstart, console)
            await expect(second.locator("#answer")).to_contain_text("The moon pulls")
            states = await first.evaluate("window.states")
            await first.reload()
            await expect(pane).to_contain_text("The moon pulls the sea")
            assert await asyncio.to_thread(answering.wait, 60) == 0
        finally:
            answering.kill()
        for page in (first, second):
            await expect(page.locator("#answer")).to_have_text(quickstart.expected)
            await page.context.close()
    texts = [state.strip() for state in states if "Waiting" not in state]
    assert len(set(texts)) > 1, "it came in one piece"
    assert all(quickstart.expected.startswith(text) for text in texts)
    assert texts == sorted(texts, key=len)


def test_the_lines_are_as_few_as_promised(quickstart: Quickstart) -> None:
    """Twelve of Python and six of HTML with JavaScript, not counting empty ones."""
    for name, most in (("answer.py", 12), ("page.html", 6)):
        assert len([line for line in quickstart.files[name].splitlines() if line]) <= most
