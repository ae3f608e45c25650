"""The two Python SDKs, unmodified, against a real server process."""

import asyncio
import base64
import itertools
import json
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from sockudo_http_python import (
    AsyncSockudo,
    ChannelParams,
    ChannelsParams,
    Event,
    HistoryParams,
    MessageExtras,
    MessageMutation,
    MessageVersionsParams,
    PresenceUser,
    Sockudo,
    Status,
    TriggerOptions,
)
from sockudo_http_python import SockudoOptions as HttpOptions
from sockudo_python import (
    AppendMode,
    ChannelAuthorizationData,
    ChannelAuthorizationOptions,
    ChannelHistoryParams,
    ConnectionState,
    SockudoException,
    SubscriptionOptions,
    SubscriptionRewind,
)

from support.channels.peer import APP, token, unique
from support.channels.process import (
    WAIT_SECONDS,
    Heard,
    answer,
    http_sdk,
    sdk_client,
    subscribed,
    until,
)
from support.web.balancer import Balancer
from tidelog.testing.process import ServerProcess

pytestmark = pytest.mark.filterwarnings(
    "ignore:ConnectionClosed:DeprecationWarning"  # in sockudo-python
)

ACKED = TriggerOptions(info="subscription_count")
"""Makes the server answer with the serials."""


async def create(http: AsyncSockudo, channel: str, data: str, **options: Any) -> str:
    """Publish a message; returns its serial."""
    options["info"] = "subscription_count"
    receipt = answer(await http.trigger(channel, "chat.message", data, TriggerOptions(**options)))
    serial: str = receipt["channels"][channel]["message_serial"]
    return serial


# Publishing and reading.


async def test_what_is_published_arrives_once(server: ServerProcess) -> None:
    """One, many, batched and repeated publishes reach V2 and V1 clients once each, in order."""
    room, other = unique("room:a;b,c=d@e"), unique("room")
    async with (
        http_sdk(server) as http,
        sdk_client(server) as v2,
        sdk_client(server, protocol_version=1) as v1,
    ):
        (_, heard), (_, heard_v1) = await subscribed(v2, room), await subscribed(v1, room)
        _, heard_other = await subscribed(v2, other)
        assert answer(await http.trigger(room, "chat.message", {"n": 1})) == {"ok": True}
        many = answer(await http.trigger([room, other], "chat.message", {"n": 2}, ACKED))
        assert {name: many["channels"][name]["delivery_serial"] for name in (room, other)} == {
            room: 2,
            other: 1,
        }
        assert many["channels"][room]["subscription_count"] == 2
        batch = [Event(room, "chat.message", {"n": n}) for n in (3, 4)]
        batch.append(Event(other, "chat.message", {"n": 5}, info="subscription_count"))
        *plain, asking = answer(await http.trigger_batch(batch))["batch"]
        assert plain == [{}, {}]
        assert asking["channels"][other]["delivery_serial"] == 2
        for repeated in (
            TriggerOptions(idempotency_key=unique("key"), info="subscription_count"),
            TriggerOptions(
                extras=MessageExtras(idempotency_key=unique("key")), info="subscription_count"
            ),
        ):
            once = await http.trigger(room, "chat.message", {"n": 6}, repeated)
            again = await http.trigger(room, "chat.message", {"n": 6}, repeated)
            assert answer(once) == answer(again)
        excluded = TriggerOptions(socket_id=v2.socket_id)
        answer(await http.trigger(room, "chat.message", {"n": 7}, excluded))
        answer(await http.trigger(room, "chat.message", "last"))
        await until(lambda: heard[-1:] == heard_v1[-1:] == [("chat.message", "last")])
    numbers = [1, 2, 3, 4, 6, 6]
    assert heard == [("chat.message", {"n": n}) for n in numbers] + [("chat.message", "last")]
    assert heard_v1 == [("chat.message", {"n": n}) for n in [*numbers, 7]] + heard[-1:]
    assert heard_other == [("chat.message", {"n": n}) for n in (2, 5)]


def test_the_sync_sdk_and_refusals(sqlite_server: ServerProcess) -> None:
    """The blocking SDK publishes and reads, and a refusal comes as the status it is."""
    channel = unique()
    options = HttpOptions(port=sqlite_server.port, verify_tls=False)
    with Sockudo(APP.id, APP.key, APP.secret, options=options) as http:
        receipt = answer(http.trigger(channel, "chat.message", {"n": 1}, ACKED))
        serial = receipt["channels"][channel]["message_serial"]
        assert answer(http.get_message(channel, serial))["item"]["data"] == '{"n":1}'
        refused = http.trigger("no spaces", "chat.message", "x")
        assert (refused.status, refused.json()["code"]) == (Status.CLIENT_ERROR, "invalid_input")
        assert http.get_message(channel, "unknown").status_code == 404
        assert http.list_channels(ChannelsParams(info="user_count")).status_code == 400
    with Sockudo(APP.id, APP.key, "another secret", options=options) as http:
        refused = http.trigger(channel, "chat.message", "x")
        assert refused.status is Status.AUTHENTICATION_ERROR


async def test_a_message_is_mutated_and_read(server: ServerProcess) -> None:
    """Update, append and delete reach V2 clients in their mode, no V1 client, and every read."""
    channel = unique("private-ai:room")
    async with (
        http_sdk(server) as http,
        sdk_client(server) as delta,
        sdk_client(server, append_mode=AppendMode.FULL) as full,
        sdk_client(server, protocol_version=1) as v1,
    ):
        _, heard = await subscribed(delta, channel)
        _, heard_full = await subscribed(full, channel)
        _, heard_v1 = await subscribed(v1, channel)
        serial = await create(http, channel, "Hel")
        for fragment in ("lo", ", tide"):
            ack = answer(await http.append_message(channel, serial, fragment))
            assert (ack["status"], ack["action"]) == ("applied", "append")
        edit = MessageMutation(data="edited", description="typo", metadata={"by": "ana"})
        answer(await http.update_message(channel, serial, edit))
        repeated = {"data": "edited twice", "op_id": "edit-2"}
        for status in ("applied", "duplicate"):
            again = answer(await http.update_message(channel, serial, repeated))
            assert again["status"] == status
        item = answer(await http.get_message(channel, serial))["item"]
        assert (item["action"], item["data"]) == ("update", "edited twice")
        answer(await http.delete_message(channel, serial, MessageMutation(clear_fields=["data"])))
        item = answer(await http.get_message(channel, serial))["item"]
        assert (item["action"], item.get("data")) == ("delete", None)
        versions = []
        page: dict[str, Any] = {"next_cursor": None, "has_more": True}
        while page["has_more"]:
            query = MessageVersionsParams(2, "oldest_first", page["next_cursor"])
            page = answer(await http.get_message_versions(channel, serial, query))
            versions += [(item["action"], item.get("data")) for item in page["items"]]
        answer(await http.trigger(channel, "chat.message", "end"))
        ends = [("chat.message", "end")]
        await until(lambda: heard[-1:] == heard_full[-1:] == heard_v1[-1:] == ends)
    told = [
        ("create", "Hel"),
        ("append", "lo"),
        ("append", ", tide"),
        ("update", "edited"),
        ("update", "edited twice"),
        ("delete", None),
    ]
    assert versions == told
    named = [("chat.message", "Hel")] + [(f"sockudo:message.{kind}", is_) for kind, is_ in told[1:]]
    assert heard == named + ends
    named[1:3] = [("sockudo:message.append", text) for text in ("Hello", "Hello, tide")]
    assert heard_full == named + ends
    assert heard_v1 == [("chat.message", "Hel"), *ends]


async def test_appends_come_together(sqlite_server: ServerProcess) -> None:
    """The client SDK reads them as one append, in either mode."""
    channel = unique("ai:room")
    words = [f"word-{number} " for number in range(12)]
    async with (
        http_sdk(sqlite_server) as http,
        sdk_client(sqlite_server, append_rollup_window=500) as delta,
        sdk_client(sqlite_server, append_rollup_window=500, append_mode=AppendMode.FULL) as full,
    ):
        (_, heard), (_, heard_full) = (
            await subscribed(delta, channel),
            await subscribed(full, channel),
        )
        is_rolled = False
        while not is_rolled:  # a busy machine may take longer than a window for each
            heard.clear()
            heard_full.clear()
            serial = await create(http, channel, "The ")
            for word in words:
                answer(await http.append_message(channel, serial, word))
            answer(await http.trigger(channel, "chat.message", "end"))
            await until(lambda: heard[-1:] == heard_full[-1:] == [("chat.message", "end")])
            assert "".join(data for _, data in heard[:-1]) == "The " + "".join(words)
            assert heard_full[-2] == ("sockudo:message.append", "The " + "".join(words))
            assert all(event == "sockudo:message.append" for event, _ in heard[1:-1])
            is_rolled = max(len(heard), len(heard_full)) < len(words)


async def test_history_is_read_reset_and_purged(server: ServerProcess) -> None:
    """The HTTP SDK pages through the latest states, and its two operators do what they say."""
    channel = unique()
    async with http_sdk(server) as http:
        serials = [await create(http, channel, f"text {n}") for n in range(5)]
        answer(await http.append_message(channel, serials[1], "+"))
        rows = []
        page: dict[str, Any] = {"next_cursor": None, "has_more": True}
        while page["has_more"]:
            query = HistoryParams(2, "oldest_first", page["next_cursor"], start_serial=2)
            page = answer(await http.get_channel_history(channel, query))
            rows += [(row["serial"], row["message"]["data"]) for row in page["items"]]
        assert rows == [(2, "text 1+"), (3, "text 2"), (4, "text 3"), (5, "text 4")]
        state = answer(await http.get_channel_history_state(channel))["stream"]
        assert state["next_serial"] == 6
        purge = await http.purge_channel_history(
            channel, "before_serial", "a test", "tests", before_serial=4
        )
        assert answer(purge)["operation"] == "purge"
        kept = answer(await http.get_channel_history(channel))["items"]
        assert [row["serial"] for row in kept] == [5, 4]
        reset = answer(await http.reset_channel_history(channel, "a test"))
        assert reset["previous_stream_id"] == state["stream_id"] != reset["new_stream_id"]
        assert answer(await http.get_channel_history(channel))["items"] == []
        refused = await http.reset_channel_history(channel, " ")
        assert refused.status_code == 400


async def test_the_client_reads_and_mutates_through_the_proxy(sqlite_server: ServerProcess) -> None:
    """`channel.history()` and `client.versioned_messages` work with the helper proxy."""
    room = unique("private-room")
    async with http_sdk(sqlite_server) as http, sdk_client(sqlite_server) as client:
        for n in range(3):
            answer(await http.trigger(room, "chat.message", f"before {n}"))
        channel, heard = await subscribed(client, room)
        assert channel.attach_serial == 3
        messages = client.versioned_messages
        ack = await messages.create(room, "chat.message", "draft", {"headers": {"tenant": "acme"}})
        serial = ack.raw["message_serial"]
        assert (ack.action, ack.channel, ack.message_id) == ("create", room, serial)
        assert (ack.history_serial, ack.delivery_serial) == (4, 4)
        assert (await messages.append(room, serial, "!")).delivery_serial == 5
        assert (await channel.update_versioned_message(serial, {"n": 1})).delivery_serial == 6
        deleted = await messages.delete(room, serial, reason="spam")
        assert (deleted.history_serial, deleted.delivery_serial) == (4, 7)
        item = answer(await http.get_message(room, serial))["item"]
        assert (item["action"], item["data"]) == ("delete", '{"n":1}')
        assert item["version"]["description"] == "spam"
        assert item["extras"]["headers"]["tenant"] == "acme"
        with pytest.raises(SockudoException, match="400"):
            await messages.append(room, serial, "")
        with pytest.raises(SockudoException, match="404"):
            await messages.delete(room, "unknown")
        query = ChannelHistoryParams("oldest_first", 2, until_attach=True)
        page = await channel.history(query)
        assert page.attach_serial == 3
        texts = [row["message"]["data"] for row in page.items]
        assert page.has_next()
        page = await page.next()
        texts += [row["message"]["data"] for row in page.items]
        assert texts == ["before 0", "before 1", "before 2"]
        assert not page.has_next()
        everything = await channel.history()
        assert [row["serial"] for row in everything.items] == [4, 3, 2, 1]
        await until(lambda: len(heard) == 4)
    assert heard == [
        ("chat.message", "draft"),
        ("sockudo:message.append", "!"),
        ("sockudo:message.update", {"n": 1}),
        ("sockudo:message.delete", {"n": 1}),
    ]


async def test_rewind_and_cache(sqlite_server: ServerProcess) -> None:
    """A late subscriber is sent the latest states it asks for, or the last event of a cache."""
    room, cache = unique(), unique("private-cache-room")
    async with http_sdk(sqlite_server) as http, sdk_client(sqlite_server) as client:
        serials = [await create(http, room, f"text {n}") for n in range(3)]
        answer(await http.append_message(room, serials[1], "+"))
        options = SubscriptionOptions(rewind=SubscriptionRewind.count_messages(2))
        _, heard = await subscribed(client, room, options)
        await until(lambda: len(heard) == 3)
        assert heard[:2] == [
            ("sockudo:message.append", "text 1+"),
            ("sockudo:message.create", "text 2"),
        ]
        assert heard[2][0] == "sockudo:rewind_complete"
        assert heard[2][1]["historical_count"] == 2
        _, missed = await subscribed(client, cache)
        await until(lambda: missed == [("sockudo:cache_miss", {})])
        for text in ("old", "newest"):
            answer(await http.trigger(cache, "price", text))
        await until(lambda: len(missed) == 3)
        async with sdk_client(sqlite_server) as late:
            _, cached = await subscribed(late, cache)
            await until(lambda: cached)
            assert cached == [("price", "newest")]


async def test_encrypted_channels_stay_opaque(sqlite_server: ServerProcess) -> None:
    """What the HTTP SDK encrypts the client decrypts; the server stores it as it came."""
    channel = unique("private-encrypted-room")
    key = base64.b64encode(bytes(range(32))).decode()
    options = HttpOptions(port=sqlite_server.port, verify_tls=False)
    async with AsyncSockudo(APP.id, APP.key, APP.secret, key, options) as http:

        async def authorize(request: Any) -> ChannelAuthorizationData:
            signed = http.authenticate(request.socket_id, request.channel_name)
            return ChannelAuthorizationData(**json.loads(signed))

        handler = ChannelAuthorizationOptions(custom_handler=authorize)
        async with sdk_client(sqlite_server, channel_authorization=handler) as client:
            _, heard = await subscribed(client, channel)
            answer(await http.trigger(channel, "secret", {"n": 1}))
            await until(lambda: heard == [("secret", {"n": 1})])
        row = answer(await http.get_channel_history(channel))["items"][0]
        assert set(json.loads(row["message"]["data"])) == {"ciphertext", "nonce"}


# Who is there.


async def test_presence_and_occupancy(server: ServerProcess) -> None:
    """Two users, one with two sockets, come and go once each; the HTTP SDK sees the same."""
    room = unique("presence-lab")
    ana, bob = PresenceUser("ana", {"name": "Ana"}), PresenceUser("bob")
    async with http_sdk(server) as http, sdk_client(server, member=ana) as first:
        channel, heard = await subscribed(first, room)
        assert (channel.members.count, channel.members.me.info) == (1, {"name": "Ana"})
        async with sdk_client(server, member=ana) as second:
            await subscribed(second, room)
            async with sdk_client(server, member=bob, protocol_version=1) as third:
                theirs, heard_bob = await subscribed(third, room)
                assert theirs.members.count == 2
                assert theirs.members.member("ana").info == {"name": "Ana"}
                users = answer(await http.get_channel_users(room))["users"]
                assert sorted(user["id"] for user in users) == ["ana", "bob"]
                info = ChannelParams(["subscription_count", "user_count"])
                assert answer(await http.get_channel(room, info)) == {
                    "occupied": True,
                    "subscription_count": 3,
                    "user_count": 2,
                }
                query = ChannelsParams(room, "user_count")
                assert answer(await http.list_channels(query)) == {
                    "channels": {room: {"user_count": 2}}
                }
                await second.disconnect()
                await channel.update({"name": "Ana", "away": True})
                await until(lambda: "sockudo:presence_update" in dict(heard))
        await until(lambda: channel.members.count == 1)
        await first.unsubscribe(room)
        occupied = True
        while occupied:
            occupied = answer(await http.get_channel(room))["occupied"]
        assert answer(await http.list_channels(ChannelsParams(room))) == {"channels": {}}
    names = [event for event, _ in heard if not event.startswith("sockudo_internal:")]
    assert names == [
        "sockudo:member_added",
        "sockudo:presence_update",
        "sockudo:member_removed",
    ]
    assert heard[0][1].id == heard[-1][1].id == "bob"
    assert heard_bob == []


async def test_client_events(sqlite_server: ServerProcess) -> None:
    """A client's event reaches the others with its sender, and can be mutated like any other."""
    private, presence = unique("private-room"), unique("presence-room")
    ana, bob = PresenceUser("ana"), PresenceUser("bob")
    async with (
        http_sdk(sqlite_server) as http,
        sdk_client(sqlite_server, member=ana) as sender,
        sdk_client(sqlite_server, member=bob, echo_messages=False) as receiver,
        sdk_client(sqlite_server, member=bob, protocol_version=1) as v1,
    ):
        mine, echoed = await subscribed(sender, private)
        theirs, heard = await subscribed(receiver, private)
        _, heard_v1 = await subscribed(v1, private)
        await mine.trigger("client-typing", {"on": True})
        await until(lambda: len(heard) == len(echoed) == len(heard_v1) == 1)
        await theirs.trigger("client-typing", {"on": False})
        await until(lambda: len(echoed) == len(heard_v1) == 2)
        assert echoed == heard_v1 == [("client-typing", {"on": on}) for on in (True, False)]
        assert heard == echoed[:1]
        senders: list[str | None] = []
        whole, _ = await subscribed(receiver, presence)
        whole.bind("client-typing", lambda _, about: senders.append(about.user_id))
        channel, _ = await subscribed(sender, presence)
        await channel.trigger("client-typing", "x")
        await until(lambda: senders == ["ana"])
        row = answer(await http.get_channel_history(private))["items"][0]
        ack = answer(
            await http.update_message(private, row["message"]["message_serial"], {"data": "edited"})
        )
        assert ack["delivery_serial"] == 3
        errors: list[Any] = []
        sender.bind("error", lambda data, _: errors.append(data["code"]))
        public, _ = await subscribed(sender, unique())
        await public.trigger("client-typing", "x")
        await until(lambda: errors == [4301])


async def greeted(http: AsyncSockudo, user: str, greeting: str, inbox: list[str]) -> None:
    """Send to a user until it arrives: nothing tells when a sign-in has subscribed its channel."""
    async with asyncio.timeout(WAIT_SECONDS):
        while greeting not in inbox:
            answer(await http.send_to_user(user, "hello", greeting))
            await asyncio.sleep(0.01)


async def test_signin_with_capabilities(server: ServerProcess) -> None:
    """A signed-in socket may do what its capabilities say and is reached and ended as a user."""
    room, eve = unique("private-ai:room"), unique("eve")
    ana = {"id": unique("ana"), "capabilities": {"message_append_own": ["private-ai:*"]}}
    async with (
        http_sdk(server) as http,
        sdk_client(server, user=ana) as client,
        sdk_client(server, user={"id": eve}) as other,
    ):
        inbox: list[str] = []
        client.bind("hello", lambda data, _: inbox.append(data))
        for signing in (client, other):
            await signing.signin()
        await until(lambda: client.user.user_id == ana["id"] and other.user.user_id == eve)
        _, heard = await subscribed(client, room)
        serial = await create(http, room, "mine", socket_id=client.socket_id)
        ack = answer(await http.append_message(room, serial, " too", client.socket_id))
        assert ack["status"] == "applied"
        item = answer(await http.get_message(room, serial))["item"]
        assert (item["data"], item["version"]["client_id"]) == ("mine too", ana["id"])
        for refused, text in (
            (await http.append_message(room, serial, "x", other.socket_id), "append"),
            (await http.delete_message(room, serial, {"socket_id": client.socket_id}), "delete"),
        ):
            assert refused.status is Status.AUTHENTICATION_ERROR
            assert refused.json() == {
                "error": f"Connection is not allowed to {text} message on channel '{room}'",
                "code": "auth_failed",
                "status": 401,
            } | {name: refused.json()[name] for name in {"ai_code"} & refused.json().keys()}
        foreign = await create(http, room, "theirs", socket_id=other.socket_id)
        refused = await http.append_message(room, foreign, "x", client.socket_id)
        assert f"is not allowed to append message owned by '{eve}'" in refused.json()["error"]
        await greeted(http, str(ana["id"]), "before", inbox)
        socket_id = client.socket_id
        answer(await http.force_reconnect_user(str(ana["id"])))
        await until(lambda: client.socket_id != socket_id)
        await until(lambda: client.channel(room).is_subscribed)
        await greeted(http, str(ana["id"]), "after", inbox)
        answer(await http.terminate_user_connections(str(ana["id"])))
        await until(lambda: client.connection_state is ConnectionState.DISCONNECTED)
        assert other.connection_state is ConnectionState.CONNECTED
        assert heard[0] == ("sockudo:message.append", " too")


async def test_capability_tokens(sqlite_server: ServerProcess) -> None:
    """A token opens what it names and nothing else, and the SDK renews an expired one by itself."""
    room, closed = unique("private-room"), unique("private-closed")
    given: list[str] = []

    def issue() -> str:
        # The first has expired, but within the skew that is allowed: it must be renewed at once.
        now = int(time.time()) - (0 if given else 3610)
        capability = {room: ["subscribe", "publish", "message_append_any"]}
        given.append(token("ana", capability, iat=now, exp=now + 3600))
        return given[-1]

    async with http_sdk(sqlite_server) as http:
        renewed = asyncio.Event()
        errors: list[Any] = []
        async with sdk_client(sqlite_server, auth_callback=issue) as client:
            client.bind("sockudo:auth_success", lambda *_: renewed.set())
            client.bind("error", lambda data, _: errors.append(data["code"]))
            _, heard = await subscribed(client, room)
            async with asyncio.timeout(60):
                await renewed.wait()
            assert len(given) == 2
            client.subscribe(closed)
            await until(lambda: errors == [4009])
            serial = await create(http, room, "text")
            answer(await http.append_message(room, serial, "+", client.socket_id))
            await until(lambda: len(heard) == 2)
            refused = await http.update_message(
                room, serial, {"data": "x", "socket_id": client.socket_id}
            )
            assert refused.status is Status.AUTHENTICATION_ERROR


# Away and back.


class Writer:
    """A publisher that goes on whatever happens, and knows of everything it wrote."""

    def __init__(self, server: ServerProcess, channel: str) -> None:
        self._http = http_sdk(server, max_retries=1, timeout=2.0)
        self._channel = channel
        self._is_done = False
        self.written: Heard = []
        """What is committed, in order, as a subscriber must hear it."""
        self.doubts = 0
        """Requests that ended without an answer."""

    def finish(self) -> None:
        """End after what is under way."""
        self._is_done = True

    async def run(self) -> None:
        """Create messages and append to each, until told to finish."""
        async with self._http as http:
            for number in itertools.count():
                text = f"message {number}:"
                key = TriggerOptions(
                    idempotency_key=f"{self._channel}-{number}", info="subscription_count"
                )
                serial = await self._create(text, key)
                self.written.append(("chat.message", text))
                for part in range(3):
                    fragment = f" {number}.{part};"
                    await self._append(http, serial, fragment)
                    self.written.append(("sockudo:message.append", fragment))
                if self._is_done:
                    return

    async def _create(self, text: str, options: TriggerOptions) -> str:
        while True:
            result = await self._http.trigger(self._channel, "chat.message", text, options)
            if result.ok:
                serial: str = result.json()["channels"][self._channel]["message_serial"]
                return serial
            await self._wait_after(result)

    async def _append(self, http: AsyncSockudo, serial: str, fragment: str) -> None:
        while True:
            result = await http.append_message(self._channel, serial, fragment)
            if result.ok:
                return
            await self._wait_after(result)
            # The SDK's append has no operation id: look before doing it again.
            while not (read := await http.get_message(self._channel, serial)).ok:
                await self._wait_after(read)
            if read.json()["item"]["data"].endswith(fragment):
                return

    async def _wait_after(self, result: Any) -> None:
        assert result.status in (Status.NETWORK_ERROR, Status.SERVER_ERROR), result
        self.doubts += 1
        await asyncio.sleep(0.02)


async def check_resumed(
    server: ServerProcess,
    disturb: Callable[[Balancer, Callable[[], Awaitable[None]]], Awaitable[None]],
) -> Writer:
    """A client that is disturbed while a writer writes has heard everything once and in order."""
    room = unique("private-stream")
    writer = Writer(server, room)
    resumes: list[Any] = []
    async with (
        Balancer(server.port) as balancer,
        sdk_client(balancer, connection_recovery=True, max_reconnect_attempts=None) as client,
    ):
        client.bind("sockudo:resume_success", lambda data, _: resumes.append(data))
        _, heard = await subscribed(client, room)

        async def more() -> None:
            at_least = len(heard) + 12
            await until(lambda: len(heard) >= at_least)

        writing = asyncio.create_task(writer.run())
        try:
            await more()
            await disturb(balancer, more)
            await more()
        finally:
            writer.finish()
            await writing
        await until(lambda: len(messages(heard)) >= len(writer.written))
        reconnects = balancer.accepted - 1
    assert messages(heard) == writer.written
    assert reconnects >= 1
    assert len(resumes) == reconnects
    assert not any(resume["failed"] for resume in resumes)
    return writer


def messages(heard: Heard) -> Heard:
    """Without what the SDK says of subscriptions."""
    return [(event, data) for event, data in heard if event != "sockudo:subscription_succeeded"]


async def test_resume_after_the_server_was_killed(server: ServerProcess) -> None:
    """Through SIGKILL and restart, a client hears every acknowledged message once and in order."""

    async def disturb(_: Balancer, more: Callable[[], Awaitable[None]]) -> None:
        await asyncio.to_thread(server.kill)
        await asyncio.to_thread(server.start)
        await more()

    writer = await check_resumed(server, disturb)
    assert writer.doubts > 0


async def test_resume_after_the_socket_was_cut(sqlite_server: ServerProcess) -> None:
    """A client whose connection is cut again and again hears every message once and in order."""

    async def disturb(balancer: Balancer, more: Callable[[], Awaitable[None]]) -> None:
        for _ in range(5):
            balancer.cut()
            await more()

    writer = await check_resumed(sqlite_server, disturb)
    assert writer.doubts == 0
