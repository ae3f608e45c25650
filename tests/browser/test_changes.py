"""What the page changes through a daemon, and how it comes back after the server was killed."""

import asyncio
from pathlib import Path

import pytest
from playwright.async_api import Browser, Page, expect

from support.dashboard.browser import DESKTOP, Console
from support.dashboard.stage import Stage
from support.mesh.daemon_process import eventually
from tidelog.testing.process import ServerProcess

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_requeue_through_the_page(page: Page, stage: Stage, artefacts: Path) -> None:
    """A dead message is requeued after a confirmation, and the daemon delivers it."""
    pilot = stage.daemons["pilot"]
    await page.goto(f"{stage.url}#/outbox?daemon=pilot&status=dead")
    row = page.locator("tbody tr", has_text="fog-1")
    await row.get_by_role("button", name="Requeue").click()
    dialog = page.get_by_role("dialog")
    await expect(dialog).to_contain_text("Send this message again?")
    await page.screenshot(path=artefacts / "outbox-question.png")
    await dialog.get_by_role("button", name="Cancel").click()
    assert pilot.outbox("fog-1")["status"] == "dead", "it was changed without a confirmation"
    stage.subscribe(pilot.key, "fog")
    await row.get_by_role("button", name="Requeue").click()
    await dialog.get_by_role("button", name="Requeue").click()
    await expect(page.locator(".notice")).to_contain_text("Requeued")
    await expect(row).to_have_count(0)
    retired = pilot.outbox("fog-1")
    assert retired["status"] == "aborted"
    replaced_by = retired["superseded_by"]
    rows = pilot.rows().values()
    fresh = next(each["client_message_id"] for each in rows if each["id"] == replaced_by)
    await asyncio.to_thread(eventually, lambda: pilot.outbox(fresh)["status"] == "done")
    await page.goto(f"{stage.url}#/outbox?daemon=pilot&status=done")
    await expect(page.locator("tbody tr", has_text=fresh[:20])).to_have_count(1)


async def test_drop_through_the_page(page: Page, stage: Stage) -> None:
    """A message is given up after a confirmation; the page shows it without being reloaded."""
    pilot = stage.daemons["pilot"]
    await page.goto(f"{stage.url}#/outbox?daemon=pilot")
    await expect(page.locator("#link-state")).to_have_text("Live")
    pilot.send("topic:nowhere", "Nobody hears this.", "lost-1")
    row = page.locator("tbody tr", has_text="lost-1")
    await expect(row).to_contain_text("dead")
    await row.get_by_role("button", name="Drop").click()
    await page.get_by_role("dialog").get_by_role("button", name="Drop").click()
    await expect(row).to_contain_text("aborted")
    assert pilot.outbox("lost-1")["status"] == "aborted"


async def test_reconnects_without_a_gap(
    page: Page, console: Console, stage: Stage, artefacts: Path
) -> None:
    """After a kill of the server the page says so, comes back alone and shows what it missed."""
    console.ignored = ("ERR_CONNECTION_REFUSED", "WebSocket connection")
    await page.goto(f"{stage.url}#/log")
    await expect(page.locator("#link-state")).to_have_text("Live")
    await stage.say("lobby", "before", "the kill")
    await expect(page.locator(".entry-row").first).to_contain_text("lobby")
    killed_at = (await positions(page))[0]
    await asyncio.to_thread(stage.server.kill)
    await expect(page.locator("#link-state")).to_contain_text("Not connected")
    await page.screenshot(path=artefacts / "log-not-connected.png")
    await asyncio.to_thread(stage.server.start)
    for number in range(3):
        await stage.say("lobby", f"after-{number}", "the kill")
    await expect(page.locator("#link-state")).to_have_text("Live")
    await stage.say("lobby", "last", "the kill")
    async with asyncio.timeout(60):
        while (found := await positions(page))[0] < killed_at + 4:  # noqa: ASYNC110 - a page
            await asyncio.sleep(0.05)
    assert found == list(range(found[0], found[-1] - 1, -1)), "there is a gap, or something twice"
    assert killed_at in found
    assert await page.locator(".gap").count() == 0


async def positions(page: Page) -> list[int]:
    """Of the listed entries, as they are listed."""
    texts = await page.locator(".entry-row .id").all_inner_texts()
    return [int(text.replace(",", "")) for text in texts]


async def test_login_with_the_admin_token(
    browser: Browser, console: Console, tmp_path: Path, artefacts: Path
) -> None:
    """A wrong token is refused, the right one opens the page, and logging out closes it."""
    environment = {"TIDELOG_ADMIN_TOKEN": "a token of the browser test", "TIDELOG_TEST_PROBE": "0"}
    with ServerProcess(data_dir=tmp_path / "data", environment=environment) as server:
        await asyncio.to_thread(server.start)
        context = await browser.new_context(viewport=DESKTOP)
        page = await context.new_page()
        console.watch(page)
        await page.goto(f"{server.url}/dashboard")
        await page.get_by_label("Admin token").fill("a guess")
        await page.get_by_role("button", name="Log in").click()
        await expect(page.get_by_role("alert")).to_be_visible()
        await page.screenshot(path=artefacts / "login-wrong.png")
        await page.get_by_label("Admin token").fill("a token of the browser test")
        await page.get_by_role("button", name="Log in").click()
        await expect(page.locator("#link-state")).to_have_text("Live")
        assert await page.evaluate("document.cookie") == "", "a script can read the session"
        await page.get_by_role("button", name="Log out").click()
        await expect(page.get_by_label("Admin token")).to_be_visible()
        await page.goto(f"{server.url}/dashboard")
        await expect(page.get_by_label("Admin token")).to_be_visible()
        await context.close()
