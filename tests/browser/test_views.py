"""Every view of the dashboard in a real Chromium, against a live server with traffic."""

import asyncio
import re
from pathlib import Path
from typing import Literal

import pytest
from playwright.async_api import Page, Route, expect

from support import node
from support.dashboard.browser import DESKTOP, PHONE, serious_problems
from support.dashboard.stage import ANSWER, CHANNEL, HOSTILE, TOPIC, Stage

pytestmark = pytest.mark.asyncio(loop_scope="session")

STREAM = f"channels/app-id/{CHANNEL}"
VIEWS = {
    "log": "treePush",
    "channels": "lobby",
    f"channels?stream={STREAM}": "The tide turns",
    "sync": "<i>ben</i>",
    "mesh": "<b>mallory</b>",
    "outbox?daemon=pilot": "fog-1",
    "pipeline": "continuity",
    "search?q=tide": "under both bulges",
    "overview": "Commits per second",
}
"""Each view and something that it shows of the stage; the charts last, when they have a past."""


async def show(page: Page, stage: Stage, view: str) -> None:
    """Open a view and wait until it shows what it should."""
    await page.goto(f"{stage.url}#/{view}")
    await expect(page.locator("#link-state")).to_have_text("Live")
    await expect(page.locator("main")).to_contain_text(VIEWS[view])


def file_name(view: str) -> str:
    """Of a screenshot."""
    return re.sub(r"\W+", "-", view.replace(STREAM, "one").replace("stream", ""))


@pytest.mark.parametrize("theme", ["light", "dark"])
async def test_every_view_shows_its_part_and_passes_axe(
    page: Page, stage: Stage, artefacts: Path, theme: Literal["light", "dark"]
) -> None:
    """Every view shows what happened, fits a phone, and axe-core finds nothing serious in it."""
    axe = await asyncio.to_thread(node.axe_source)
    await page.emulate_media(color_scheme=theme)
    async with stage.traffic():
        await look_at_all(page, stage, artefacts, theme, axe)
    assert (await page.title()).endswith("tidelog"), "something was taken for markup"


async def look_at_all(page: Page, stage: Stage, artefacts: Path, theme: str, axe: str) -> None:
    """Open every view, take its pictures and let axe judge it."""
    for view in VIEWS:
        await page.set_viewport_size(DESKTOP)
        await show(page, stage, view)
        await page.screenshot(path=artefacts / f"{file_name(view)}-{theme}.png")
        assert await serious_problems(page, axe, theme) == [], view
        await page.set_viewport_size(PHONE)
        width = await page.evaluate("document.documentElement.scrollWidth")
        assert width <= PHONE["width"], view
        await page.screenshot(path=artefacts / f"{file_name(view)}-{theme}-phone.png")


async def test_charts_and_figures_move_with_the_log(page: Page, stage: Stage) -> None:
    """The overview shows commits as they happen, without being asked again."""
    await show(page, stage, "overview")
    written = page.locator("section.panel tbody tr").first.locator("td.number")
    await expect(written).to_have_text("0")
    await stage.say("lobby", "chat.message", {"text": "a wave"})
    await expect(written).to_have_text("1")
    drawn = page.locator(".chart path.line.first").first
    await expect(drawn).to_have_attribute("d", re.compile("L"))
    await expect(page.locator(".tiles dd").first).to_have_text(re.compile(r"\d"))
    process = page.get_by_role("table", name="What each process").locator("tbody tr")
    await expect(process).to_contain_text(["server"])


async def test_log_follows_filters_and_shows_an_entry(page: Page, stage: Stage) -> None:
    """New entries appear by themselves, filters hold for them, and one shows its content."""
    await show(page, stage, "log")
    await page.get_by_label("Surface").select_option("sync")
    await expect(page).to_have_url(re.compile("surface=sync"))
    await expect(page.locator(".entries")).not_to_contain_text("message.create")
    await expect(page.locator(".entry-row").first).to_be_visible()
    before = await page.locator(".entry-row").count()
    await stage.say("lobby", "chat.message", {"text": "not for this filter"})
    await stage.push_node("ana")
    await expect(page.locator(".entry-row")).to_have_count(before + 1)
    await expect(page.locator(".entry-row").first).to_contain_text("ana")
    await page.locator(".entry-row .id").last.click()
    dialog = page.get_by_role("dialog")
    await expect(dialog).to_contain_text("treePush")
    await expect(dialog.locator("pre").first).to_contain_text('"partitions": [')
    await page.keyboard.press("Escape")
    await expect(dialog).to_have_count(0)


async def test_hostile_content_is_text(page: Page, stage: Stage) -> None:
    """A message, an event name and a member's name that hold markup are shown as they are."""
    await show(page, stage, f"channels?stream={STREAM}")
    await expect(page.locator(".message", has_text="owned").last).to_contain_text(HOSTILE)
    await stage.say("hostile", "chat.message", {"text": HOSTILE})
    await show(page, stage, "log")
    await page.locator(".entry-row", has_text="hostile").locator(".id").click()
    await expect(page.get_by_role("dialog").locator("pre")).to_contain_text("<script>")
    await page.keyboard.press("Escape")
    await show(page, stage, "pipeline")
    await expect(page.locator("main")).to_contain_text(HOSTILE)
    await page.goto(f"{stage.url}#/search?q=Rotterdam")
    await expect(page.locator(".snippet")).to_contain_text("<script>")
    await expect(page.locator("mark")).to_have_text("Rotterdam")
    assert await page.locator("main img, main script").count() == 0
    assert (await page.title()).endswith("tidelog")


async def test_a_version_that_comes_while_versions_are_read_is_listed_once(
    page: Page, stage: Stage
) -> None:
    """The feed brings it first, and the page of versions has it too."""
    written = asyncio.Event()

    async def late(route: Route) -> None:
        await written.wait()
        await route.continue_()

    await show(page, stage, f"channels?stream={STREAM}")
    before = await page.locator(".message").count()
    newest = page.locator(".message").first
    async with stage.publisher.stream(CHANNEL, "answer") as answer:
        await answer.write("Once, or ")
        await expect(page.locator(".message")).to_have_count(before + 1)
        await page.route("**/dashboard/api/versions*", late)
        await newest.get_by_role("button", name="version").click()
        await answer.write("twice?")
        await expect(newest.locator("> div .text")).to_contain_text("twice?")
        written.set()
        listed = newest.locator(".versions > li")
        await expect(listed.filter(has_text="create")).to_have_count(1)
        await expect(listed.filter(has_text="twice?")).to_have_count(1)
    await page.unroute("**/dashboard/api/versions*")


async def test_a_token_stream_grows(page: Page, stage: Stage) -> None:
    """The text of an open stream grows while one looks, and its versions are listed."""
    await show(page, stage, f"channels?stream={STREAM}")
    before = await page.locator(".message").count()
    newest = page.locator(".message").first
    text = newest.locator("> div .text")
    async with stage.publisher.stream(CHANNEL, "answer") as answer:
        await answer.write("Zero")
        await expect(page.locator(".message")).to_have_count(before + 1)
        await expect(newest.locator(".chip")).to_have_text("streaming")
        await newest.get_by_role("button", name="version").click()
        for words in ("One", "One two", "One two three"):
            await answer.write(f" {words.split()[-1]}")
            await expect(text).to_contain_text(words)
    await expect(newest.locator(".chip")).not_to_have_text("streaming")
    shown = int((await newest.locator("> button").inner_text()).split()[0])
    assert shown >= 4, "a create, and an append for each word"
    await expect(newest.locator(".versions > li")).to_have_count(shown)
    folded_here = await text.inner_text()
    await page.reload()
    await expect(newest.locator("> button")).to_have_text(f"{shown} versions")
    assert await text.inner_text() == folded_here, "the server folds it to another text"


async def test_a_message_changes_and_goes(page: Page, stage: Stage) -> None:
    """An update replaces the text, a delete is marked, and reading it anew shows the same."""
    await show(page, stage, f"channels?stream={STREAM}")
    receipt = await stage.publisher.publish(CHANNEL, "notice", "Low water at 20:11.")
    newest = page.locator(".message").first
    await expect(newest).to_contain_text("Low water at 20:11.")
    serial = receipt.message_serial or ""
    await stage.publisher.update(CHANNEL, serial, data={"low": "20:19"}, description="corrected")
    await expect(newest.locator("> div .text")).to_have_text('{"low":"20:19"}')
    await newest.get_by_role("button", name="2 versions").click()
    await expect(newest.locator(".versions > li").first).to_contain_text("corrected")
    await stage.publisher.delete(CHANNEL, serial)
    await expect(newest.locator(".chip")).to_have_text("deleted")
    live = await newest.locator("> div, > .message-head .chip").all_inner_texts()
    await page.reload()
    await expect(newest.locator(".chip")).to_have_text("deleted")
    assert await newest.locator("> div, > .message-head .chip").all_inner_texts() == live


async def test_sync_clients_come_and_move(page: Page, stage: Stage) -> None:
    """A client's row follows what it does."""
    await show(page, stage, "sync")
    line = page.locator(".facts-line")
    before = await line.inner_text()
    await stage.push_node("<i>ben</i>")
    await expect(line).not_to_have_text(before)


async def test_mesh_deliveries_change_state(page: Page, stage: Stage) -> None:
    """A new send appears with its deliveries, and the one to a connected member is delivered."""
    await show(page, stage, "mesh")
    stage.daemons["lighthouse"].send(f"topic:{TOPIC}", "Low water at 20:11.")
    newest = page.locator("table").last.locator("tbody tr").first
    await expect(newest).to_contain_text("lighthouse")
    await expect(newest).to_contain_text("pilot: delivered")
    await expect(newest).to_contain_text("<b>mallory</b>: pending")


async def test_keyboard_alone_reaches_everything(page: Page, stage: Stage) -> None:
    """The skip link is first, leads to the content, and a view is opened with the Enter key."""
    await show(page, stage, "overview")
    await page.keyboard.press("Tab")
    await expect(page.locator("#skip")).to_be_focused()
    await page.keyboard.press("Enter")
    await expect(page.locator("#main")).to_be_focused()
    await page.locator("nav a", has_text="Sync").focus()
    await page.keyboard.press("Enter")
    await expect(page.locator("h1")).to_have_text("Sync clients")
    await page.get_by_role("button", name="Theme").focus()
    await page.keyboard.press("Enter")
    await expect(page.locator("html")).to_have_attribute("data-theme", "light")
    await page.reload()
    await expect(page.locator("html")).to_have_attribute("data-theme", "light")


async def test_answer_is_found_by_its_words(page: Page, stage: Stage) -> None:
    """The search box finds a message and leads to its channel."""
    await page.goto(f"{stage.url}#/search")
    await page.get_by_label("Words of messages").fill("bulges")
    await page.keyboard.press("Enter")
    await expect(page.locator(".snippet")).to_contain_text(ANSWER[100:140])
    await page.locator(".hits a").click()
    await expect(page.locator("h1")).to_have_text(CHANNEL)
