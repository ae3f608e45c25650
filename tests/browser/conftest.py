"""One stage, one Chromium and one folder of pictures for the whole run."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, async_playwright, expect

from support.dashboard.browser import DESKTOP, WAIT_MS, Console
from support.dashboard.chromium import chromium_path
from support.dashboard.stage import Stage, staged

ARTEFACTS = Path(__file__).parents[2] / "artefacts" / "browser"
"""Screenshots of the last run; not kept in the repository."""

expect.set_options(timeout=WAIT_MS)


@pytest.fixture(scope="session")
def artefacts() -> Path:
    """An empty folder for screenshots."""
    shutil.rmtree(ARTEFACTS, ignore_errors=True)
    ARTEFACTS.mkdir(parents=True)
    return ARTEFACTS


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def stage(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stage]:
    """A live server with traffic."""
    async with staged(tmp_path_factory.mktemp("stage")) as made:
        yield made


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser() -> AsyncIterator[Browser]:
    """A real Chromium."""
    path = await asyncio.to_thread(chromium_path)
    async with async_playwright() as playwright:
        launched = await playwright.chromium.launch(
            executable_path=path,
            # As root there is no sandbox; everything the browser sees here is ours.
            args=["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"],
        )
        yield launched
        await launched.close()


@pytest.fixture
def console() -> Iterator[Console]:
    """Fails the test if a page complained."""
    made = Console()
    yield made
    assert made.complaints == []


@pytest_asyncio.fixture(loop_scope="session")
async def page(browser: Browser, console: Console) -> AsyncIterator[Page]:
    """A page in a context of its own."""
    context = await browser.new_context(viewport=DESKTOP)
    context.set_default_timeout(WAIT_MS)
    made = await context.new_page()
    console.watch(made)
    yield made
    await context.close()
