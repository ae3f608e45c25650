"""One server in several processes: an owner, three fronts, and clients on different ones."""

import asyncio
import contextlib
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest
from websockets.asyncio.client import connect

from support.channels import peer as channels
from support.dashboard.feed_peer import FeedPeer
from support.mesh.peer import ADMIN_TOKEN, BrokerAt, Json, envelope, unique
from support.serve import processes
from support.serve.clients import LOST, acknowledge, receive, send, until
from support.serve.processes import WAIT_SECONDS, Processes, has_open, is_running, kill, pause
from support.sync.peer import EVENT, Peer, connected, note, open_peer, outcome, token
from tidelog.dashboard.access import CHANGE_HEADER, COOKIE
from tidelog.dashboard.feed import SESSION_ENDED

FRONTS = 3
MAX_MEMBERS = 4
STALE = {"PYTHONPATH": str(Path(processes.__file__).with_name("stale"))}
PATIENT = {"PYTHONPATH": str(Path(processes.__file__).with_name("patient"))}
KEPT = 20
"""What each client has acknowledged between two kills."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    """One for all tests."""
    data = tmp_path_factory.mktemp("serve") / "data"
    limit = {"TIDELOG_CHANNELS_MAX_PRESENCE_MEMBERS": str(MAX_MEMBERS)}
    with Processes(data, FRONTS, **limit, **PATIENT) as server:
        yield server


@pytest.fixture
async def broker(server: Processes) -> AsyncIterator[BrokerAt]:
    """The same, for members of a mesh."""
    broker = BrokerAt(server.url, server.store)
    async with broker.http:
        yield broker


@contextlib.asynccontextmanager
async def channels_peer(server: Processes) -> AsyncIterator[channels.Peer]:
    """A socket of channels after its handshake."""
    url = f"{server.ws_url}/app/{channels.APP.key}?{channels.V1_QUERY}"
    async with connect(url, compression=None, ping_interval=None, close_timeout=2) as socket:
        peer = channels.Peer(socket, channels.APP, 1)
        await channels.handshake(peer)
        yield peer


@contextlib.asynccontextmanager
async def channels_api(server: Processes) -> AsyncIterator[channels.Api]:
    """The HTTP API; its connection is made with the first request and kept."""
    async with httpx.AsyncClient(verify=False, timeout=channels.WAIT_SECONDS) as client:
        yield channels.Api(server.url, client)


async def test_sync_clients_of_different_fronts(server: Processes) -> None:
    """What one submits at one front the other gets at another, and a client is at one of them."""
    first, second, third = await server.fronts()
    url = f"{server.ws_url}/sync"
    async with contextlib.AsyncExitStack() as stack:
        async with server.only(first):
            ana = await stack.enter_async_context(connected(url, "ana"))
        async with server.only(second):
            ben = await stack.enter_async_context(connected(url, "ben"))
        await ana.subscribe("p")
        assert outcome(await ben.submit(note("one"), note("two"))) == ["committed"] * 2
        assert [each["id"] for each in await ana.broadcasts(2)] == ["one", "two"]
        assert [each["id"] for each in await ben.whole("p")] == ["one", "two"]
        assert outcome(await ana.submit(note("one"))) == ["committed"], "known, from elsewhere"
        assert len(await ana.whole("p")) == 2
        async with server.only(third):
            again = await stack.enter_async_context(connected(url, "ana"))
        assert await ana.close_code() == 4409
        assert len(await again.whole("p")) == 2


async def test_members_at_different_fronts(server: Processes, broker: BrokerAt) -> None:
    """A send that one front accepts is delivered through another, once."""
    first, second, third = await server.fronts()
    slug = await broker.mesh()
    ana, ben = [await broker.member(slug) for _ in range(2)]
    async with contextlib.AsyncExitStack() as stack:
        async with server.only(first):
            his = await stack.enter_async_context(ben.connected())
        async with server.only(second):
            hers = await stack.enter_async_context(ana.connected())
        await his.until("peer_join", member_pubkey=ana.address)
        fields = envelope("dm", ben.address, "hello")
        message = unique()
        assert (await hers.post(message, fields))["code"] == 201
        delivered = await his.until("deliver", client_message_id=message)
        assert delivered["body"] == "hello"
        await acknowledge(his, delivered)
        async with server.only(third), httpx.AsyncClient(base_url=server.url, verify=False) as http:
            broker.http, kept = http, broker.http
            try:
                assert (await ana.post(message, fields)).status_code == 200, "known everywhere"
            finally:
                broker.http = kept


async def present(api: channels.Api, channel: str) -> set[str]:
    """Who is, as a front knows it."""
    users = channels.ok(await api.get(f"/channels/{channel}/users"))["users"]
    return {each["id"] for each in users}


async def test_channels_of_different_fronts(server: Processes) -> None:
    """A publication reaches subscribers of other fronts, who also see each other."""
    first, second, third = await server.fronts()
    room, lobby = channels.unique(), channels.unique("presence-lobby")
    async with contextlib.AsyncExitStack() as stack:
        async with server.only(first):
            ana = await stack.enter_async_context(channels_peer(server))
        async with server.only(second):
            ben = await stack.enter_async_context(channels_peer(server))
            api = await stack.enter_async_context(channels_api(server))
            channels.ok(await api.get("/channels"))
        await ana.subscribe(room)
        await api.publish(room, "hello")
        assert (await ana.expect("chat.message", room))["data"] == "hello"
        await ana.subscribe(lobby, {"user_id": "ana"})
        await ben.subscribe(lobby, {"user_id": "ben"})
        joined = await ana.expect("_member_added", lobby)
        assert '"ben"' in joined["data"]
        async with server.only(third), channels_api(server) as other:
            assert await present(other, lobby) == {"ana", "ben"}


async def members_left_by_a_killed_front(server: Processes) -> set[str]:
    """Who is present, of ana and ben, when ben's front was killed and another is in its place."""
    first, second, *_ = former = await server.fronts()
    lobby = channels.unique("presence-lobby")
    async with contextlib.AsyncExitStack() as stack:
        async with server.only(first):
            ana = await stack.enter_async_context(channels_peer(server))
        async with server.only(second):
            ben = await stack.enter_async_context(channels_peer(server))
        await ana.subscribe(lobby, {"user_id": "ana"})
        await ben.subscribe(lobby, {"user_id": "ben"})
        await ana.expect("_member_added", lobby)
        kill(second)
        [new] = {*await server.fronts()} - {*former}
        async with server.only(new), channels_api(server) as api:
            there = await present(api, lobby)
        if there == {"ana"}:
            assert '"ben"' in (await ana.expect("_member_removed", lobby))["data"]
        return there


async def test_the_members_of_a_killed_front_leave(server: Processes) -> None:
    """The others are told, and whoever asks any front."""
    assert await members_left_by_a_killed_front(server) == {"ana"}


async def test_an_owner_with_a_stale_registry_is_found_out(tmp_path: Path) -> None:
    """The same check, of an owner that keeps the members of a lost front."""
    with Processes(tmp_path / "data", 2, **STALE) as server, pytest.raises(AssertionError):
        assert await members_left_by_a_killed_front(server) == {"ana"}


async def test_members_of_different_fronts_do_not_exceed_the_limit(server: Processes) -> None:
    """All join at once; those that are refused are told so, and the others see each other."""
    lobby = channels.unique("presence-full")
    async with contextlib.AsyncExitStack() as stack:
        peers: list[channels.Peer] = []
        for front in await server.fronts():
            async with server.only(front):
                peers += [await stack.enter_async_context(channels_peer(server)) for _ in range(3)]
        for number, peer in enumerate(peers):
            await peer.attach(lobby, {"user_id": f"u{number}"})
        joined = [(await peer.receive())["event"].endswith("_succeeded") for peer in peers]
        assert joined.count(True) == MAX_MEMBERS
        users = {f"u{number}" for number, is_in in enumerate(joined) if is_in}
        async with channels_api(server) as api:
            assert await present(api, lobby) == users


async def back_in(
    server: Processes, stack: contextlib.AsyncExitStack, lobby: str, user: str
) -> channels.Peer:
    """A member that has come back, to a front that has an owner."""
    async with asyncio.timeout(WAIT_SECONDS):
        while True:
            with contextlib.suppress(*LOST):
                peer = await stack.enter_async_context(channels_peer(server))
                await peer.attach(lobby, {"user_id": user})
                if (await peer.receive())["event"].endswith("_succeeded"):
                    return peer


async def test_nobody_is_said_to_have_left_when_the_owner_is_lost(server: Processes) -> None:
    """Members come back to the next one, and see each other once."""
    lobby = channels.unique("presence-lobby")
    first, second, *_ = await server.fronts()
    async with contextlib.AsyncExitStack() as stack:
        async with server.only(first):
            ana = await stack.enter_async_context(channels_peer(server))
        async with server.only(second):
            ben = await stack.enter_async_context(channels_peer(server))
        await ben.subscribe(lobby, {"user_id": "ben"})
        await ana.subscribe(lobby, {"user_id": "ana"})
        kill(await server.owner())
        await ana.expect_close(4200)
        ana = await back_in(server, stack, lobby, "ana")
        await back_in(server, stack, lobby, "ben")
        assert '"ben"' in (await ana.expect("_member_added", lobby))["data"]
        await ana.quiet()


@contextlib.asynccontextmanager
async def dashboard(server: Processes) -> AsyncIterator[httpx.AsyncClient]:
    """A browser with its cookies, on a connection that is made with the first request and kept."""
    async with httpx.AsyncClient(base_url=server.url, verify=False, timeout=WAIT_SECONDS) as http:
        yield http


async def test_the_dashboard_of_every_front_shows_the_whole_server(server: Processes) -> None:
    """A login holds at all of them; each shows the clients and the entries of the others."""
    first, second, third = await server.fronts()
    api = "/dashboard/api"
    async with contextlib.AsyncExitStack() as stack:
        async with server.only(first):
            here = await stack.enter_async_context(dashboard(server))
            answer = await here.post("/dashboard/login", data={"token": ADMIN_TOKEN})
            assert answer.headers["location"] == "/dashboard"
        async with server.only(second):
            dora = await stack.enter_async_context(connected(f"{server.ws_url}/sync", "dora"))
            there = await stack.enter_async_context(dashboard(server))
            there.cookies = here.cookies
            state = (await there.get(f"{api}/state")).json()
            assert {"channels", "sync", "mesh"} <= set(state["surfaces"])
            headers = {
                "origin": server.url,
                "cookie": f"{COOKIE}={here.cookies[COOKIE]}",
            }
            url = f"{server.ws_url}/dashboard/feed"
            feed = FeedPeer(
                await stack.enter_async_context(connect(url, additional_headers=headers))
            )
            hello = await feed.heard("hello")
        assert hello["position"] >= state["position"]
        await feed.say("follow", filter={"stream": "sync"})
        await feed.heard("page")
        assert outcome(await dora.submit(note("seen", "shown"))) == ["committed"]
        assert [each["entity"] for each in await feed.entries(1)] == ["seen"]
        async with server.only(third):
            elsewhere = await stack.enter_async_context(dashboard(server))
            elsewhere.cookies = here.cookies
            assert (await elsewhere.get("/metrics")).status_code == 200, "the connection is made"
        async with asyncio.timeout(WAIT_SECONDS):
            shown: list[Json] = []
            while len(shown) < FRONTS + 1:  # who is busy says it later
                shown = (await elsewhere.get(f"{api}/processes")).json()["processes"]
        names = [each["name"] for each in shown]
        assert names == ["owner", "front 1", "front 2", "front 3"]
        assert all(each["memory"] > each["open_files"] > 0 for each in shown)
        assert sum(each["connections"] for each in shown) >= 2
        async with asyncio.timeout(WAIT_SECONDS):
            clients: list[str] = []
            while "dora" not in clients:
                answer = await elsewhere.get(f"{api}/sync")
                clients = [each["client"] for each in answer.json()["clients"]]
        change = {CHANGE_HEADER.decode(): "1", "origin": server.url}
        answer = await elsewhere.post("/dashboard/logout", headers=change)
        assert answer.status_code == 200
        assert await feed.ended() == SESSION_ENDED
        async with asyncio.timeout(WAIT_SECONDS):
            while (await here.get(f"{api}/state")).status_code != 401:
                pass


async def test_a_logout_outlives_the_owner(server: Processes) -> None:
    """Every front, also one that did not take it, refuses the session at the next owner too."""
    async with dashboard(server) as browser:
        await browser.post("/dashboard/login", data={"token": ADMIN_TOKEN})
        cookies = dict(browser.cookies)
        change = {CHANGE_HEADER.decode(): "1", "origin": server.url}
        assert (await browser.post("/dashboard/logout", headers=change)).status_code == 200
    owner = await server.owner()
    kill(owner)
    assert await server.owner() != owner
    for front in await server.fronts():
        async with server.only(front), asyncio.timeout(WAIT_SECONDS):
            status = 503
            while status == 503:  # it has no owner yet
                with contextlib.suppress(*LOST):
                    async with dashboard(server) as browser:
                        browser.cookies.update(cookies)
                        status = (await browser.get("/dashboard/api/state")).status_code
            assert status == 401


async def test_the_owner_is_lost(server: Processes, broker: BrokerAt) -> None:
    """Who waits is told that nobody knows; connections are closed so that clients come back."""
    slug = await broker.mesh()
    ana = await broker.member(slug)
    room, draft = channels.unique(), note("cat-0", "kept")
    first, *_ = await server.fronts()
    async with contextlib.AsyncExitStack() as stack:
        async with server.only(first):
            subscriber = await stack.enter_async_context(channels_peer(server))
            submitter = await stack.enter_async_context(connected(f"{server.ws_url}/sync", "cat"))
            daemon = await stack.enter_async_context(ana.connected())
            publisher = await stack.enter_async_context(channels_api(server))
            channels.ok(await publisher.get("/channels"))
        owner = await server.owner()
        await pause(owner)
        publishing = asyncio.create_task(publisher.events(room, data="lost"))
        await submitter.send("submit_events", {"events": [draft]})
        await subscriber.quiet()  # by now the front has both, and can do nothing about them
        kill(owner)
        channels.refused(await publishing, 503, "service_unavailable")
        assert (await submitter.expect("error"))["code"] == "server_error"
        assert await submitter.close_code() == 1011, "as after every server_error"
        await subscriber.expect_close(4200)
        assert await daemon.close_code() == 1001
    kept: list[str] = []
    enough = asyncio.Event()
    submitting = asyncio.create_task(submit(server, "cat", kept, enough))
    await until(lambda: bool(kept))
    enough.set()
    await submitting
    assert (await stored(server, "kept"))["cat-0"] == 1


async def test_a_front_without_an_owner_ends_when_it_is_told(server: Processes) -> None:
    """Also one that had one before, and would begin again."""
    front, *_ = await server.fronts()
    async with server.nothing_is_started():
        kill(await server.owner())
        await until(lambda: not has_open(front, server.store))
        os.kill(front, signal.SIGTERM)
        await until(lambda: not is_running(front))
    assert front not in await server.fronts()


@contextlib.asynccontextmanager
async def sync_peer(server: Processes, name: str) -> AsyncIterator[Peer]:
    """A connection of sync, or what is of `LOST` if its front has just lost the owner."""
    hello = {"token": token(name), "client_id": name, "supported_profiles": [EVENT]}
    async with open_peer(f"{server.ws_url}/sync", open_timeout=None) as peer:
        await peer.send("connect", hello)
        await peer.wait_for("connected")
        yield peer


async def submit(server: Processes, name: str, kept: list[str], enough: asyncio.Event) -> None:
    """Submit drafts to sync, each under its id until it is answered."""
    while not enough.is_set():
        with contextlib.suppress(*LOST):
            async with sync_peer(server, name) as peer:
                while not enough.is_set():
                    draft = f"{name}-{len(kept)}"
                    assert outcome(await peer.submit(note(draft, "kept"))) == ["committed"]
                    kept.append(draft)


async def stored(server: Processes, partition: str) -> Counter[str]:
    """How often each draft is in a partition."""
    async with asyncio.timeout(WAIT_SECONDS):
        while True:
            with contextlib.suppress(*LOST):
                async with sync_peer(server, "reader") as reader:
                    return Counter(each["id"] for each in await reader.whole(partition))


async def test_kill(server: Processes, broker: BrokerAt) -> None:
    """A front and the owner are killed: what was acknowledged is there, once, and is delivered."""
    slug = await broker.mesh()
    ana, ben = [await broker.member(slug) for _ in range(2)]
    kept: dict[str, list[str]] = {"dm": [], **{f"c{number}": [] for number in range(4)}}
    got: set[str] = set()
    enough = asyncio.Event()

    async def more() -> None:
        """Every client has something acknowledged that it had not before."""
        wanted = {name: len(each) + KEPT for name, each in kept.items()}
        await until(lambda: all(len(kept[name]) >= wanted[name] for name in wanted))

    async with asyncio.TaskGroup() as tasks:
        receiving = tasks.create_task(receive(ben, got))
        tasks.create_task(send(ana, ben, kept["dm"], enough))
        for name in kept.keys() - {"dm"}:
            tasks.create_task(submit(server, name, kept[name], enough))
        await more()
        former = await server.fronts()
        kill(former[0])
        await more()
        assert former[0] not in await server.fronts()
        owner = await server.owner()
        kill(owner)
        await more()
        assert await server.owner() != owner
        await until(lambda: set(kept["dm"]) <= got)
        enough.set()
        receiving.cancel()
    drafts = await stored(server, "kept")
    assert set(drafts.values()) == {1}
    assert drafts.keys() >= {draft for name in kept.keys() - {"dm"} for draft in kept[name]}
    sent = Counter(
        message
        for (message,) in await broker.rows("SELECT client_message_id FROM {}", "message_queue")
    )
    assert {sent[message] for message in kept["dm"]} == {1}
