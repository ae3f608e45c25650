"""One stage, one Chromium and one folder of pictures for the whole run."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import pytest_asyncio
from playwright.async_api import Browser, BrowserContext, Page, async_playwright, expect

from support.dashboard.browser import DESKTOP, WAIT_MS, Console
from support.dashboard.chromium import ARGUMENTS, chromium_path
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
        launched = await playwright.chromium.launch(executable_path=path, args=list(ARGUMENTS))
        yield launched
        await launched.close()


@pytest.fixture
def console() -> Iterator[Console]:
    """Fails the test if a page complained."""
    made = Console()
    yield made
    assert made.complaints == []


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def kept_context(browser: Browser) -> AsyncIterator[BrowserContext]:
    """What most pages share, with one that stays, and with it the process in which all are shown.

    The first page of a context takes a second of a processor, others a third of that.
    """
    context = await browser.new_context(viewport=DESKTOP)
    context.set_default_timeout(WAIT_MS)
    stays = await context.new_page()
    await stays.route("**/*", lambda route: route.fulfill(body=""))
    await stays.goto("http://127.0.0.1/")  # a site has a process, whatever the port
    yield context
    await context.close()


@pytest_asyncio.fixture(loop_scope="session")
async def page(kept_context: BrowserContext, console: Console) -> AsyncIterator[Page]:
    """A page whose origin has stored nothing yet."""
    made = await kept_context.new_page()
    console.watch(made)
    yield made
    address = urlsplit(made.url)
    stays, *others = kept_context.pages
    for each in others:
        await each.close()
    developer = await kept_context.new_cdp_session(stays)
    await developer.send(
        "Storage.clearDataForOrigin",
        {"origin": f"{address.scheme}://{address.netloc}", "storageTypes": "all"},
    )
    await developer.detach()
