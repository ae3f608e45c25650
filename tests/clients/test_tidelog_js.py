"""`tidelog.js` against a real server, in a page of Chromium and in Node, through kills and cuts."""

import asyncio
import os
import random
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page

from support.channels.javascript import Host, node_host, prepare
from support.channels.peer import APP, Api, ok, token, unique
from support.channels.process import channels_process
from support.web.relay import Relay
from tidelog.client import ChannelPublisher
from tidelog.client.backoff import Backoff
from tidelog.testing.process import ServerProcess

pytestmark = pytest.mark.asyncio(loop_scope="session")

WAIT_SECONDS = 60.0
ANSWERS = 20
KILLS = max(3, int(os.environ.get("TIDELOG_TEST_SOAK_KILLS", "3")))
"""Of the server; `scripts/soak --kills` raises it."""
CUTS = KILLS + 1
TOKENS = 13 * KILLS


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def relay(sqlite_server: ServerProcess) -> AsyncIterator[Relay]:
    """The network before the server."""
    async with Relay(sqlite_server.port) as made:
        yield made


@pytest_asyncio.fixture(scope="module", loop_scope="session", params=("chromium", "node"))
async def host(
    request: pytest.FixtureRequest, relay: Relay, browser: Browser
) -> AsyncIterator[Host]:
    """Where tidelog.js runs; a test that takes it runs in both."""
    if request.param == "node":
        async with node_host() as process:
            await prepare(process, relay.address)
            yield process
        return
    page = await browser.new_page()
    # Another origin than that of the module and the server: a page of somebody else.
    await page.goto(f"http://{relay.address.replace('127.0.0.1', 'localhost')}/healthz/live")
    await prepare(page, relay.address)
    yield page
    await page.close()


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def api(sqlite_server: ServerProcess) -> AsyncIterator[Api]:
    """The app's server, with a good network."""
    async with httpx.AsyncClient(timeout=WAIT_SECONDS, verify=False) as http:
        yield Api(sqlite_server.url, http)


@asynccontextmanager
async def opened(browser: Browser, relay: Relay) -> AsyncIterator[Page]:
    """A page on a device of its own."""
    context = await browser.new_context()
    page = await context.new_page()
    await page.goto(f"http://{relay.address}/healthz/live")
    await prepare(page, relay.address)
    yield page
    await context.close()


async def shown_as_stored(host: Host, api: Api, name: str, channel: str) -> None:
    """What a client shows is what the server has, message by message."""
    page = await api.history(channel, direction="oldest_first")
    stored = [
        {
            "serial": item["message"]["message_serial"],
            "name": item["message"].get("name"),
            "data": item["message"].get("data"),
            "action": item["message"]["action"].removeprefix("message."),
            "version": item["message"]["version"]["serial"],
        }
        for item in page["items"]
    ]
    shown: list[dict[str, Any]] = []
    try:
        async with asyncio.timeout(WAIT_SECONDS):
            while shown != stored:
                messages = await host.evaluate("(a) => shown(...a)", [name, channel])
                shown = [{key: each.get(key) for key in stored[0]} for each in messages]
    except TimeoutError:
        assert shown == stored
        raise


async def test_messages_are_shown_as_the_server_has_them(host: Host, api: Api) -> None:
    """Creates, updates, deletes and appends, live, rewound and of a message from before."""
    room = unique()
    await host.evaluate("(room) => { open('live'); return follow('live', room); }", room)
    streaming = {"ai": {"transport": {"status": "streaming"}}}
    first = (await api.publish(room, "The ", extras=streaming))["message_serial"]
    second = (await api.publish(room, {"n": 1}, name="figure"))["message_serial"]
    for text in ("tide ", "comes ", "\N{WATER WAVE} in"):
        await api.mutate("append", room, first, data=text)
    await api.mutate("update", room, second, data={"n": 2}, name="number")
    third = (await api.publish(room, "gone"))["message_serial"]
    await api.mutate("delete", room, third, clear_fields=["data"])
    await shown_as_stored(host, api, "live", room)
    status = "(a) => shown(...a)[0].status"
    assert await host.evaluate(status, ["live", room]) == "streaming"

    # Who comes late is given states; who comes without a rewind reads what it lacks.
    await host.evaluate(
        "(room) => { open('late'); return follow('late', room, {rewind: 9}); }", room
    )
    await host.evaluate("(room) => { open('bare'); return follow('bare', room); }", room)
    assert await host.evaluate("(a) => shown(...a)", ["bare", room]) == []
    complete = {"ai": {"transport": {"status": "complete"}}}
    await api.mutate("append", room, first, data="", extras=complete)
    for name in ("live", "late"):
        await shown_as_stored(host, api, name, room)
        assert await host.evaluate(status, [name, room]) == "complete"
    whole = "(a) => until(() => shown(...a).find(({partial}) => !partial)).then((m) => m.data)"
    assert await host.evaluate(whole, ["bare", room]) == "The tide comes \N{WATER WAVE} in"

    # Pages of the past, from the newest on and back.
    pages = """async (room) => {
      const channel = tides.late.channel(room);
      const newest = await channel.history({ limit: 2 });
      const older = await channel.history({ limit: 2, before: newest.messages[0] });
      const after = await channel.history({ limit: 1, after: older.messages[0] });
      const serials = ({ messages, hasMore }) => [messages.map(({ serial }) => serial), hasMore];
      return [newest, older, after].map(serials);
    }"""
    assert await host.evaluate(pages, room) == [
        [[second, third], True],
        [[first], False],
        [[second], True],
    ]
    # The last event of a cache channel, for who comes late.
    cache = unique("cache-room")
    await api.publish(cache, "the last")
    await host.evaluate("(room) => follow('late', room)", cache)
    assert await host.evaluate("() => until(() => notes.late.events.at(-1)[2] === 'the last')")
    grown = unique("cache-room")
    serial = (await api.publish(grown, "the"))["message_serial"]
    await api.mutate("append", grown, serial, data=" last")
    await host.evaluate("(room) => follow('late', room, { rewind: 5 })", grown)
    await shown_as_stored(host, api, "late", grown)
    await host.evaluate("() => ['live', 'late', 'bare'].forEach((name) => tides[name].close())")


async def test_private_and_presence_channels(host: Host, api: Api) -> None:
    """Signatures, members, events of clients, and what the server refuses."""
    private, presence = unique("private-room"), unique("presence-room")
    for name in ("ana", "bob"):
        user = {"user_id": name, "user_info": {"of": name}}
        await host.evaluate("([name, user]) => { open(name, { user }); }", [name, user])
        await host.evaluate("(a) => follow(...a)", [name, private])
        await host.evaluate("(a) => follow(...a)", [name, presence])
    members = "(a) => tides[a[0]].channel(a[1]).members.map(({ id, info }) => [id, info])"
    everybody = [["ana", {"of": "ana"}], ["bob", {"of": "bob"}]]
    assert sorted(await host.evaluate(members, ["bob", presence])) == everybody
    joined = "(room) => until(() => tides.ana.channel(room).members.length === 2)"
    assert await host.evaluate(joined, presence)
    await host.evaluate(
        "(room) => tides.bob.channel(room).updatePresence({ away: true })", presence
    )
    away = "(room) => until(() => tides.ana.channel(room).members.find(({ info }) => info.away))"
    assert (await host.evaluate(away, presence))["id"] == "bob"

    # A client event: to the others and back, with who said it.
    await host.evaluate(
        "(room) => tides.bob.channel(room).publish('client-typing', { on: true })", presence
    )
    heard = """([name, room]) =>
      until(() => tides[name].messages(room).find((m) => m.name === 'client-typing'))
        .then((m) => [m.json(), m.clientId])"""
    for name in ("ana", "bob"):
        assert await host.evaluate(heard, [name, presence]) == [{"on": True}, "bob"]
    await host.evaluate("(room) => tides.bob.channel(room).unsubscribe()", presence)
    left = "(room) => until(() => tides.ana.channel(room).members.length === 1)"
    assert await host.evaluate(left, presence)

    # Refusals reach who asked, and nobody else is disturbed.
    refused = """async (room) => {
      open('eve', { authorize: async () => ({ auth: `${'x'.repeat(8)}:00` }) });
      return follow('eve', room).then(() => 'let in', ({ code, message }) => [code, message]);
    }"""
    code, text = await host.evaluate(refused, private)
    assert (code, "Invalid signature" in text) == (401, True)
    public = unique()
    await host.evaluate("(room) => follow('eve', room)", public)
    await host.evaluate("(room) => tides.eve.channel(room).publish('client-x', 1)", public)
    said = await host.evaluate(
        "() => until(() => notes.eve.errors.find(([code]) => code === 4301))"
    )
    assert "private or presence" in said[1]
    await api.publish(private, "still there")
    assert await host.evaluate("(room) => until(() => tides.bob.messages(room).length)", private)
    await host.evaluate("() => ['ana', 'bob', 'eve'].forEach((name) => tides[name].close())")


async def test_tokens_are_renewed_and_their_limits_told(host: Host, api: Api) -> None:
    """A token is asked for at the connection and at its end; a refused one ends the client."""
    room = unique()
    now = int(time.time())
    short = token("ana", {"*": ["subscribe"]}, iat=now - 60, exp=now + 2)
    long = token("ana", {"*": ["subscribe"]})
    opened = """([room, short, long]) => {
      globalThis.given = [short, long];
      open('ana', { token: async () => given.shift() ?? long });
      return follow('ana', room);
    }"""
    await host.evaluate(opened, [room, short, long])
    await host.evaluate("() => until(() => given.length === 0)")  # its time was over
    await api.publish(room, "after the renewal")
    assert await host.evaluate("(room) => until(() => tides.ana.messages(room).length)", room)
    assert await host.evaluate("() => notes.ana.states") == ["connecting", "connected"]
    page = (
        "(room) => tides.ana.channel(room).history().catch(({ code, message }) => [code, message])"
    )
    code, text = await host.evaluate(page, room)
    assert (code, "Not allowed to read the history" in text) == (4009, True)
    await host.evaluate("() => tides.ana.close()")
    failed = """async ([room, text]) => {
      open('bad', { token: text });
      return follow('bad', room).catch(({ code, message }) => [code, message]);
    }"""
    code, text = await host.evaluate(failed, [room, long[:-4] + "AAAA"])
    assert (code, "give `token` as a function" in text) == (4009, True)
    assert await host.evaluate("() => tides.bad.state") == "failed"


async def test_too_much_missed_is_a_reset_that_is_told(host: Host, api: Api) -> None:
    """More operations than the server replays: the page is told, and shows what is there now."""
    room = unique()
    await host.evaluate(
        "(room) => { open('away'); return follow('away', room, {rewind: 5}); }", room
    )
    serial = (await api.publish(room, "0"))["message_serial"]
    assert await host.evaluate("(room) => until(() => tides.away.messages(room).length)", room)
    await host.evaluate("() => tides.away.disconnect()")
    await api.mutate("append", room, serial, data=" missed")
    await host.evaluate("() => tides.away.connect()")
    await shown_as_stored(host, api, "away", room)
    assert await host.evaluate("() => notes.away.resets") == []
    await host.evaluate("() => tides.away.disconnect()")
    for _ in range(51):  # a batch of ten each; the window has 500
        ok(await api.post("/batch_events", {"batch": [{"name": "n", "channel": room}] * 10}))
    await api.mutate("append", room, serial, data=" unseen")
    await host.evaluate("() => tides.away.connect()")
    [reset] = await host.evaluate(
        "() => until(() => notes.away.resets.length && notes.away.resets)"
    )
    assert reset == {"code": "position_expired", "reason": "recovery_window_exceeded"}
    newest = "(room) => until(() => tides.away.messages(room).length === 5)"
    assert await host.evaluate(newest, room)
    await host.evaluate("() => tides.away.close()")


async def test_what_clients_publish_is_there_once_and_in_order(
    host: Host, api: Api, relay: Relay, sqlite_server: ServerProcess
) -> None:
    """Inputs and a cancel, through kills and cuts; who may not is told why."""
    room = unique()
    ana = token("ana", {"*": ["subscribe", "publish", "history"]})
    await host.evaluate(
        "([room, token]) => { open('ana', { token }); return follow('ana', room); }", [room, ana]
    )
    await host.evaluate(
        """(room) => {
          const channel = tides.ana.channel(room);
          const input = (_, n) => channel.publish('ai-input', { n }, { id: `q-${n}` });
          globalThis.published = Promise.all(Array.from({ length: 8 }, input));
        }""",
        room,
    )
    relay.cut()
    await asyncio.to_thread(sqlite_server.kill)
    await asyncio.to_thread(sqlite_server.start)
    await asyncio.sleep(0.1)
    relay.cut()
    serials = await host.evaluate(
        "() => published.then((all) => all.map((m) => m?.serial ?? null))"
    )
    items = (await api.history(room, direction="oldest_first"))["items"]
    assert [item["message_id"] for item in items] == [f"q-{n}" for n in range(8)]
    stored = [item["message"]["message_serial"] for item in items]
    assert all(serial in (None, kept) for serial, kept in zip(serials, stored, strict=True))
    senders = {item["message"]["extras"]["ai"]["transport"]["input-client-id"] for item in items}
    assert senders == {"ana"}

    # The same id is the same message, another one under it is refused; so is another's run.
    tried = """async ([room, how]) => {
      const channel = tides.ana.channel(room);
      const publish = { same: () => channel.publish('ai-input', { n: 0 }, { id: 'q-0' }),
                        other: () => channel.publish('ai-input', 'x', { id: 'q-0' }),
                        output: () => channel.publish('ai-output', 'x'),
                        all: () => channel.cancel({ all: true }) }[how];
      const said = ({ code, reason, aiCode }) => [code, reason, aiCode ?? null];
      return publish().then(() => 'done', said);
    }"""
    assert await host.evaluate(tried, [room, "same"]) == "done"
    assert await host.evaluate(tried, [room, "other"]) == [4301, "invalid_input", None]
    for how in ("output", "all"):
        assert await host.evaluate(tried, [room, how]) == [4301, "ai_event_not_permitted", 104003]
    cancel = "(room) => tides.ana.channel(room).cancel({ own: true }).then((m) => m.text)"
    assert await host.evaluate(cancel, room) == '{"own":true}'
    await host.evaluate("() => tides.ana.close()")
    assert len((await api.history(room))["items"]) == 9


async def test_runs_are_followed_and_stopped(host: Host, api: Api) -> None:
    """A run and its messages, as far as they are known, and a cancel by who may cancel any."""
    room = unique()
    boss = token("boss", {"*": ["subscribe", "publish", "run_cancel_any"]})
    await host.evaluate(
        "([room, token]) => { open('b', { token }); return follow('b', room); }", [room, boss]
    )

    async def event(name: str, data: str = "", **transport: str) -> str:
        headers = {key.replace("_", "-"): value for key, value in transport.items()}
        receipt = await api.publish(room, data, name=name, extras={"ai": {"transport": headers}})
        serial: str = receipt["message_serial"]
        return serial

    started = {"run_id": "r1", "invocation_id": "i1", "run_client_id": "ana"}
    await event("ai-run-start", **started)
    output = await event("ai-output", "The tide", run_id="r1", status="streaming", stream="true")
    runs = """async ([room, status]) => {
      const is = (run) => run.status === status && run.messages.length;
      const found = () => tides.b.channel(room).runs.find(is);
      const { id, clientId, messages } = await until(found);
      return [id, clientId, messages.map(({ text }) => text)];
    }"""
    assert await host.evaluate(runs, [room, "running"]) == ["r1", "ana", ["The tide"]]
    await host.evaluate("(room) => tides.b.channel(room).cancel({ runId: 'r1' })", room)
    [cancel] = (await api.history(room, limit=1))["items"]
    assert (cancel["message"]["name"], cancel["message"]["data"]) == ("ai-cancel", '{"runId":"r1"}')
    ended = {"ai": {"transport": {"run-id": "r1", "status": "cancelled", "stream": "true"}}}
    await api.mutate("append", room, output, data="", extras=ended)
    await event("ai-run-end", run_id="r1", run_reason="cancelled")
    assert await host.evaluate(runs, [room, "cancelled"]) == ["r1", "ana", ["The tide"]]
    await host.evaluate("() => tides.b.close()")


async def test_a_second_device_stops_a_run(
    browser: Browser, relay: Relay, sqlite_server: ServerProcess
) -> None:
    """The button on one device ends the writer, and the other device shows it."""
    room = unique()
    async with (
        ChannelPublisher(sqlite_server.url, APP.id, APP.key, APP.secret) as publisher,
        opened(browser, relay) as first,
        opened(browser, relay) as second,
    ):
        capability = publisher.token("ana", {room: ["subscribe", "publish", "history"]})
        followed = """([room, token]) => {
          open('a', { token });
          return follow('a', room, { rewind: 9 });
        }"""
        for page in (first, second):
            await page.evaluate(followed, [room, capability])
        async with publisher.run(room, client_id="ana") as run, asyncio.timeout(WAIT_SECONDS):
            await run.write("The tide")
            grown = (
                "(room) => until(() => tides.a.messages(room).find(({ streaming }) => streaming))"
            )
            assert await first.evaluate(grown, room)
            await second.evaluate("(room) => tides.a.channel(room).cancel({ own: true })", room)
            await run.wait_cancelled()
        assert run.reason == "cancelled"
        for page in (first, second):
            ended = """(room) => until(() => tides.a.channel(room).runs[0]?.status === 'cancelled')
              .then(() => tides.a.channel(room).runs[0].messages.map((m) => [m.text, m.status]))"""
            assert await page.evaluate(ended, room) == [["The tide", "cancelled"]]


async def test_an_answer_whose_writer_is_killed_ends(browser: Browser, tmp_path: Path) -> None:
    """After a `kill -9` of the writer the page shows what came, as cancelled, and why."""
    writer = """
import asyncio, sys
from tidelog.client import ChannelPublisher
async def main():
    async with ChannelPublisher(sys.argv[1], "app-id", "app-key", "app-secret") as publisher:
        async with publisher.stream("chat", "answer") as answer:
            await answer.write("The tide")
            await asyncio.sleep(3600)
asyncio.run(main())
"""
    quick = {"TIDELOG_CHANNELS_AI_TRANSPORT_ORPHAN_TIMEOUT_SECONDS": "1"}
    with ServerProcess(data_dir=tmp_path, environment=quick, arguments=("--dev",)) as server:
        await asyncio.to_thread(server.start)
        page = await browser.new_page()
        await page.goto(f"{server.url}/healthz/live")
        await page.evaluate(
            """async () => {
              const { Tidelog } = await import("/tidelog.js");
              globalThis.chat = new Tidelog({ key: "app-key" }).subscribe("chat", { rewind: 1 });
              globalThis.shown = new Promise((resolve) => chat.on("message", resolve));
            }"""
        )
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", writer, server.url)
        await page.evaluate("() => shown")
        process.kill()
        await process.wait()
        ended = """async () => {
          const isOver = () => chat.messages.length && !chat.messages[0].streaming;
          while (!isOver()) await new Promise((go) => setTimeout(go, 20));
          const [{ text, status, transport }] = chat.messages;
          return [text, status, transport["error-code"]];
        }"""
        assert await page.evaluate(ended) == ["The tide", "cancelled", "orphan_timeout"]
        await page.close()


async def test_no_token_is_lost_doubled_or_reordered(browser: Browser, tmp_path: Path) -> None:
    """A page and a Node process follow twenty answers while the server is killed and lines are cut.

    Each piece must come once and in order: the pieces of a message, put together, are what was
    written. And what is shown grows: each text that was shown continues the one before it.
    """
    # A busy machine may let a client miss a lot; here that must not end in a reset.
    window = {"TIDELOG_CHANNELS_CONNECTION_RECOVERY_MAX_BUFFER_SIZE": "100000"}
    with channels_process(tmp_path, environment=window) as server:
        await asyncio.to_thread(server.start)
        async with Relay(server.port) as relay:
            await answers_are_followed(browser, relay, server)


async def answers_are_followed(browser: Browser, relay: Relay, server: ServerProcess) -> None:
    """See above."""
    room, private = unique(), unique("private-room")
    chance = random.Random(4)
    written: dict[str, str] = {}
    page = await browser.new_page()
    await page.goto(f"http://{relay.address}/healthz/live")

    async def answer(publisher: ChannelPublisher, number: int) -> None:
        channel = private if number % 2 else room
        words = [f"{number}.{n}\N{WAVING BLACK FLAG} " for n in range(TOKENS)]
        async with publisher.stream(channel, "answer") as stream:
            for word in words:
                await stream.write(word)
                await asyncio.sleep(0.02)
        assert stream.message_serial is not None
        written[stream.message_serial] = "".join(words)

    async def disturb() -> None:
        for disturbance in chance.sample(["kill"] * KILLS + ["cut"] * CUTS, KILLS + CUTS):
            await asyncio.sleep(0.1)
            relay.cut()
            if disturbance == "kill":
                await asyncio.to_thread(server.kill)
                await asyncio.to_thread(server.start)

    async with (
        node_host() as process,
        ChannelPublisher(
            *(server.url, APP.id, APP.key, APP.secret),
            attempts=200,
            backoff=Backoff(first=0.02, most=0.2),
        ) as publisher,
    ):
        hosts: tuple[Host, ...] = (page, process)
        for host in hosts:
            await prepare(host, relay.address)
            # Tokens come to one of them one by one, to the other together.
            window = 40 if host is process else 0
            await host.evaluate("(ms) => { open('a', { appendRollupWindow: ms }); }", window)
            for channel in (room, private):
                await host.evaluate("(a) => follow(...a, { rewind: 9 })", ["a", channel])
        async with asyncio.TaskGroup() as group:
            for number in range(ANSWERS):
                group.create_task(answer(publisher, number))
            group.create_task(disturb())
        assert len(written) == ANSWERS
        for host in hosts:
            ended = """async ([rooms, count]) => {
              const messages = () => rooms.flatMap((room) => shown('a', room));
              await until(() => messages().filter((m) => m.status === 'complete').length === count);
              return notes.a;
            }"""
            note = await host.evaluate(ended, [[room, private], ANSWERS])
            assert note["resets"] == []
            assert note["errors"] == []
            assert note["states"].count("connected") > 1, "nothing was cut"
            pieces = {
                serial: "".join(piece for _, piece in parts)
                for serial, parts in note["pieces"].items()
            }
            assert pieces == written
            for serial, texts in note["texts"].items():
                assert texts[-1] == written[serial]
                assert all(later.startswith(text) for text, later in pairwise(texts))
    await page.close()
