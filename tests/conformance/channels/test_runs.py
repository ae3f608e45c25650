"""The checks of runs (runs 9): who publishes what, metadata, cancels, and the end of orphans."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from support.channels.peer import (
    APP,
    V2_QUERY,
    Api,
    ChannelsNode,
    Peer,
    channel_path,
    channels_server,
    headers_of,
    nothing_else,
    ok,
    refused,
    token,
    unique,
)
from tidelog.channels.protocol.requests import parse_mutation
from tidelog.testing.clock import FakeClock
from tidelog.testing.postgresql import create_database

pytestmark = pytest.mark.asyncio(loop_scope="module")

Stores = Callable[[str], Awaitable[str]]
Json = dict[str, Any]

FOR_ALL = ("ai-input", "ai-cancel")
FOR_AGENTS = (
    *("ai-output", "ai-run-start", "ai-run-suspend", "ai-run-resume", "ai-run-end"),
    *("ai-step-start", "ai-step-end"),
)
EVENTS = (*FOR_ALL, *FOR_AGENTS)
NOT_PERMITTED = ("ai_event_not_permitted", 104003)
BAD_HEADER = ("ai_invalid_transport_header", 104000)
TOO_LARGE = ("ai_header_too_large", 104001)
SPOOF = ("ai_client_id_spoof", 104002)

CAN_SUBSCRIBE = {"*": ["subscribe"]}
CAN_PUBLISH = {"*": ["subscribe", "publish", "history"]}
CAN_CANCEL = {"*": ["subscribe", "publish", "run-cancel-any"]}
TIMEOUT_MS = 60_000


def agent_token(client_id: str, capability: object, claim: object = True) -> str:
    """The token of an agent."""
    claims: Json = {"x-tidelog-agent": claim}
    return token(client_id, capability, **claims)


def data_of(event: str) -> Json:
    """Data that the event may have."""
    return {"own": True} if event == "ai-cancel" else {"text": "hi"}


def ai(**transport: str) -> Json:
    """Extras with these transport headers; `_` stands for `-`."""
    return {"ai": {"transport": {key.replace("_", "-"): said for key, said in transport.items()}}}


def transport_of(frame: Json) -> Json:
    """The transport headers of a frame or an item."""
    found: Json = frame["extras"]["ai"]["transport"]
    return found


async def say(
    peer: Peer, event: str, channel: str, data: object, message_id: str = "", **fields: Any
) -> str:
    """Publish by a frame; returns the id."""
    message_id = message_id or unique("m")
    await peer.send(event, data, channel=channel, message_id=message_id, **fields)
    return message_id


async def start(api: Api, channel: str, run: str, owner: str | None) -> None:
    """A run begins, by an agent with the app's secret."""
    extras = ai(run_id=run, invocation_id="i1")
    if owner is not None:
        extras["ai"]["transport"]["run-client-id"] = owner
    ok(await api.events(channel, name="ai-run-start", data="", extras=extras))


# Who publishes what.


async def test_run_check_01_who_may_publish_what(node: ChannelsNode, api: Api) -> None:
    """Each event from a socket without `publish`, with it, with an agent's token, and signed."""
    for event in EVENTS:
        channel, data = unique("ai:room"), data_of(event)
        async with (
            node.v2(token=token("eve", CAN_SUBSCRIBE)) as without,
            node.v2(token=token("ana", CAN_PUBLISH)) as user,
            node.v2(token=agent_token("bot", CAN_PUBLISH)) as agent,
            node.v2(token=agent_token("bot", CAN_PUBLISH, False)) as no_agent,
            node.v2(token=agent_token("b", CAN_SUBSCRIBE)) as mute_agent,
            node.v2() as nobody,
            node.v2() as watch,
        ):
            await watch.subscribe(channel)
            for peer in (without, mute_agent, nobody):
                sent = await say(peer, event, channel, data)
                await peer.expect_refused(channel, *NOT_PERMITTED, sent)
                await peer.quiet()
            for peer in (user, no_agent):
                sent = await say(peer, event, channel, data)
                if event in FOR_ALL:
                    frame = await watch.expect(event, channel)
                    assert frame["message_id"] == sent
                    assert json.loads(frame["data"]) == data
                else:
                    text = await peer.expect_refused(channel, *NOT_PERMITTED, sent)
                    assert "agents" in text
                await peer.quiet()
            sent = await say(agent, event, channel, data)
            frame = await watch.expect(event, channel)
            assert (frame["message_id"], frame["user_id"]) == (sent, "bot")
            ack = ok(await api.events(channel, name=event, data=data))["channels"][channel]
            frame = await watch.expect(event, channel)
            assert frame["serial"] == ack["delivery_serial"]
            await nothing_else(api, channel, watch)


async def test_run_check_01_names_that_are_none(node: ChannelsNode, api: Api) -> None:
    """An agent's socket publishes what is in the table; the signed API other names too."""
    channel = unique("ai:room")
    async with node.v2(token=agent_token("bot", CAN_PUBLISH)) as agent, node.v2() as watch:
        await watch.subscribe(channel)
        for name in ("ai-", "ai-token", "ai-outputs"):
            sent = await say(agent, name, channel, "x")
            await agent.expect_refused(channel, *NOT_PERMITTED, sent)
        await agent.send("chat.message", "x", channel=channel)  # no frame of this protocol
        await agent.quiet()
        ok(await api.events(channel, name="ai-token", data="x"))
        await watch.expect("ai-token", channel)
    claims: tuple[object, ...] = ("true", 1, [])
    for wrong in claims:
        query = f"{V2_QUERY}&token={agent_token('bot', CAN_PUBLISH, wrong)}"
        async with node.open(query, protocol=2) as peer:
            await peer.expect_close(4009)


async def test_run_check_02_what_a_socket_publishes_is_kept(node: ChannelsNode, api: Api) -> None:
    """Durable, ordered, once under its `message_id`; another event under it is refused."""
    channel, key = unique("ai:room"), unique("m")
    async with node.v2(token=token("ana", CAN_PUBLISH)) as ana, node.v2() as watch:
        await ana.subscribe(channel)
        await watch.subscribe(channel)
        extras = {"headers": {"tenant": "acme"}, **ai(event_id="e1", role="user")}
        for _ in range(2):
            await say(ana, "ai-input", channel, {"text": "hi"}, key, extras=extras)
        frame = await watch.expect("ai-input", channel)
        await ana.expect("ai-input", channel)
        await nothing_else(api, channel, watch, ana)
        assert (frame["message_id"], frame["user_id"], frame["serial"]) == (key, "ana", 1)
        assert frame["data"] == '{"text":"hi"}', "as text, like an HTTP publish"
        wanted = {"event-id": "e1", "role": "user", "input-client-id": "ana"}
        assert transport_of(frame) == wanted
        item = (await api.history(channel, direction="oldest_first"))["items"][0]
        assert (item["message_id"], item["event_name"]) == (key, "sockudo:message.create")
        assert item["message"]["name"] == "ai-input"
        assert item["message"]["extras"] == frame["extras"]
        ack = {
            "message_serial": item["message"]["message_serial"],
            "version_serial": item["message"]["message_serial"],
            "history_serial": 1,
        }
        at = item["message"]["version"]["timestamp_ms"]
        assert frame["extras"]["headers"] == headers_of("create", ack, at, tenant="acme")
        await say(ana, "ai-input", channel, {"text": "ho"}, key, extras=extras)
        text = await ana.expect_refused(channel, "invalid_input", None, key)
        assert "different payload" in text
        await say(ana, "ai-input", channel, "plain", "x" * 128)
        assert (await ana.expect("ai-input", channel))["data"] == "plain"
        for wrong in ("x" * 129, "", 7):
            await ana.send("ai-input", "x", channel=channel, message_id=wrong)
            await ana.expect_refused(channel, "invalid_input", None)
        await ana.send("ai-input", None, channel=channel)
        frame = await ana.expect("ai-input", channel)
        assert (frame["data"], len(frame["message_id"])) == ("null", 36)


async def test_run_check_02_events_that_cannot_be_published(node: ChannelsNode, api: Api) -> None:
    """Without a channel, on a name that is none, with V1: told, and nothing is done."""
    channel = unique("ai:room")
    async with node.v2(token=token("ana", CAN_PUBLISH)) as ana:
        sent = await say(ana, "ai-input", "no*channel", "x")
        await ana.expect_refused("no*channel", "invalid_input", None, sent)
        await ana.send("ai-input", "x", message_id="m1")
        frame = await ana.expect(":error")
        assert frame["data"]["reason"] == "missing_channel_info"
        assert frame["data"]["message_id"] == "m1"
        await ana.send("ai-input", "x", channel=channel, extras="no")
        await ana.expect_refused(channel, "invalid_input", None)
        await ana.quiet()
    async with node.v1() as old:
        await old.send("ai-input", "x", channel=channel)
        assert "protocol 2" in await old.expect_error(4301)
    assert (await api.history(channel))["items"] == []


async def test_run_check_03_echo_and_v1(node: ChannelsNode, api: Api) -> None:
    """The sender gets its own unless it does not want it; V1 gets the plain event."""
    channel = unique("presence-ai")
    granted = {"*": ["subscribe", "publish", "presence"]}
    async with (
        node.v2(token=token("ana", granted)) as ana,
        node.v2(token=token("bob", granted), echo_messages="false") as bob,
        node.v1() as old,
    ):
        await old.subscribe(channel, {"user_id": "old"})
        await ana.subscribe(channel, {"user_id": "ana"})
        await old.expect("_member_added", channel)
        await bob.subscribe(channel, {"user_id": "bob"})
        for peer in (old, ana):
            await peer.expect("_member_added", channel)
        await say(ana, "ai-input", channel, "one", extras=ai(role="user"))
        await bob.expect("ai-input", channel)
        await say(bob, "ai-cancel", channel, {"own": True})
        for expected in ("ai-input", "ai-cancel"):
            await ana.expect(expected, channel)
        plain = {"event": "ai-input", "channel": channel, "data": "one", "user_id": "ana"}
        assert await old.receive() == plain
        plain = {"event": "ai-cancel", "channel": channel, "data": '{"own":true}'}
        assert await old.receive() == {**plain, "user_id": "bob"}
        extras = ai(run_id="r", status="streaming", stream="true")
        ack = ok(await api.events(channel, name="ai-output", data="a", extras=extras))
        serial = ack["channels"][channel]["message_serial"]
        await api.mutate("append", channel, serial, data="b", extras=ai(status="complete"))
        assert await old.receive() == {"event": "ai-output", "channel": channel, "data": "a"}
        await nothing_else(api, channel, old)


async def test_run_check_04_who_has_publish(node: ChannelsNode, api: Api) -> None:
    """A token says so itself; a sign-in needs a subscription where that is signed; or as events."""
    secret, public = unique("private-ai"), unique("ai:room")
    async with node.v2(token=token("ana", {secret: ["publish"]})) as ana:
        await say(ana, "ai-input", secret, "1")
        sent = await say(ana, "ai-input", public, "no")
        await ana.expect_refused(public, *NOT_PERMITTED, sent)
    async with node.v2() as bob:
        await bob.signin("bob")
        sent = await say(bob, "ai-input", secret, "no")
        await bob.expect_refused(secret, *NOT_PERMITTED, sent)
        await bob.subscribe(secret)
        await say(bob, "ai-input", secret, "2")
        assert transport_of(await bob.expect("ai-input", secret)) == {"input-client-id": "bob"}
        await say(bob, "ai-input", public, "3")
        await bob.quiet()
    async with node.v2() as cy:
        await cy.signin("cy", {"publish": ["x*"]})
        sent = await say(cy, "ai-input", public, "no")
        await cy.expect_refused(public, *NOT_PERMITTED, sent)
    lab = unique("presence-ai")
    async with node.v2() as dan:
        sent = await say(dan, "ai-input", lab, "no")
        await dan.expect_refused(lab, *NOT_PERMITTED, sent)
        await dan.subscribe(lab, {"user_id": "dan"})
        await say(dan, "ai-input", lab, "4")
        frame = await dan.expect("ai-input", lab)
        assert transport_of(frame) == {"input-client-id": "dan"}
        await dan.subscribe(secret)
    async with node.v2() as eve:
        await eve.subscribe(secret)
        await say(eve, "ai-input", secret, "5")
        assert "ai" not in (await eve.expect("ai-input", secret))["extras"], "nobody knows her"
        sent = await say(eve, "ai-cancel", secret, {"runId": "r"})
        await eve.expect_refused(secret, *NOT_PERMITTED, sent)
    for channel in (unique("private-encrypted-x"), "#server-to-user-ana"):
        async with node.v2(token=token("ana", CAN_PUBLISH)) as ana:
            sent = await say(ana, "ai-input", channel, "no")
            await ana.expect_refused(channel, *NOT_PERMITTED, sent)
    texts = [item["message"]["data"] for item in (await api.history(secret))["items"]]
    assert texts == ["5", "2", "1"]


# Metadata.

DOMAINS = {
    "run-reason": ("complete", "cancelled", "error"),
    "stream": ("true", "false"),
    "status": ("streaming", "complete", "cancelled"),
    "step-reason": ("complete", "failed", "cancelled"),
    "role": ("user", "assistant", "system", "tool", "agent"),
}
FREE = (
    *("run-id", "run-client-id", "codec-message-id", "parent", "fork-of", "msg-regenerate"),
    *("supersedes", "stream-id", "discrete", "invocation-id", "event-id", "input-client-id"),
    *("step-id", "step-start-serial", "run-continue", "steer-codec-message-ids"),
    *("step-client-id", "error-code", "error-message", "model"),
)


async def publish(api: Api, channel: str, transport: Json, codec: Json | None = None) -> Any:
    """An `ai-output` over HTTP with this metadata."""
    extras = {"ai": {"transport": transport, "codec": codec or {}}}
    return await api.events(channel, name="ai-output", data="x", extras=extras)


async def test_run_check_05_domains(node: ChannelsNode, api: Api) -> None:
    """Every key with each of its values; an unknown key and another value are 104000."""
    channel = unique("ai:room")
    for key, values in DOMAINS.items():
        for value in values:
            ok(await publish(api, channel, {key: value}))
        for value in ("", "TRUE", "streaming ", "other"):
            response = await publish(api, channel, {key: value})
            text = refused(response, 400, BAD_HEADER[0], ai_code=BAD_HEADER[1])
            assert key in text
    for key in FREE:
        ok(await publish(api, channel, {key: "\u00e9 any"}))
    ok(await publish(api, channel, {"run-client-id": "", "step-client-id": ""}))
    no_texts: list[Any] = [7, None, True, ["r"], {}]
    wrong: list[Json] = [
        *({key: "x"} for key in ("turn-id", "Run-id", "run_id", "", "run id", "run-id\u00e9")),
        *({key: ""} for key in ("run-id", "invocation-id", "codec-message-id")),
        *({"run-id": value} for value in no_texts),
    ]
    for transport in wrong:
        response = await publish(api, channel, transport)
        refused(response, 400, BAD_HEADER[0], ai_code=BAD_HEADER[1])
    ok(await publish(api, channel, {}, {"aB_9-": "x", "status": "whatever", "run-id": ""}))
    for codec in ({"a b": "x"}, {"": "x"}, {"\u00e9": "x"}, {"a.b": "x"}, {"a": 1}):
        response = await publish(api, channel, {}, codec)
        refused(response, 400, BAD_HEADER[0], ai_code=BAD_HEADER[1])
    async with node.v2(token=token("ana", CAN_PUBLISH)) as ana:
        sent = await say(ana, "ai-input", channel, "x", extras=ai(role="boss"))
        await ana.expect_refused(channel, *BAD_HEADER, sent)
        sent = await say(ana, "ai-input", channel, "x", extras=ai(turn_id="t"))
        await ana.expect_refused(channel, *BAD_HEADER, sent)


async def test_run_check_06_sizes(node: ChannelsNode, api: Api) -> None:
    """Keys, their length and that of values: at, below and above."""
    channel = unique("ai:room")
    for key, most in (
        ("run-id", 256),
        ("error-message", 256),
        ("steer-codec-message-ids", 2048),
    ):
        for length in (1, most - 1, most):
            ok(await publish(api, channel, {key: "x" * length}))
        response = await publish(api, channel, {key: "x" * (most + 1)})
        refused(response, 400, TOO_LARGE[0], ai_code=TOO_LARGE[1])
        ok(await publish(api, channel, {key: "\u00e9" * (most // 2)}))
        response = await publish(api, channel, {key: "\u00e9" * (most // 2 + 1)})
        refused(response, 400, TOO_LARGE[0], ai_code=TOO_LARGE[1])
    for key, most in (("any", 256), ("providerMetadata", 8192)):
        for length in (0, most - 1, most):
            ok(await publish(api, channel, {}, {key: "x" * length}))
        response = await publish(api, channel, {}, {key: "x" * (most + 1)})
        refused(response, 400, TOO_LARGE[0], ai_code=TOO_LARGE[1])
    for length, is_good in ((63, True), (64, True), (65, False)):
        response = await publish(api, channel, {}, {"k" * length: "x"})
        if is_good:
            ok(response)
        else:
            refused(response, 400, TOO_LARGE[0], ai_code=TOO_LARGE[1])
    for count, is_good in ((31, True), (32, True), (33, False)):
        response = await publish(api, channel, {}, {f"k{n}": "x" for n in range(count)})
        if is_good:
            ok(response)
        else:
            refused(response, 400, TOO_LARGE[0], ai_code=TOO_LARGE[1])
    response = await publish(api, channel, {"x" * 65: ""})
    refused(response, 400, TOO_LARGE[0], ai_code=TOO_LARGE[1])
    async with node.v2(token=token("ana", CAN_PUBLISH)) as ana:
        sent = await say(ana, "ai-input", channel, "x", extras=ai(model="m" * 257))
        await ana.expect_refused(channel, *TOO_LARGE, sent)


async def test_run_check_07_foreign_client_ids(node: ChannelsNode, api: Api) -> None:
    """A socket says nobody's id but its own; the signed API any. A cancel may name its target."""
    channel = unique("ai:room")
    async with node.v2(token=agent_token("bot", CAN_CANCEL)) as bot, node.v2() as watch:
        await watch.subscribe(channel)
        for event in EVENTS:
            data = {"all": True} if event == "ai-cancel" else "x"
            for key in ("run-client-id", "input-client-id", "step-client-id"):
                extras = {"ai": {"transport": {key: "eve"}}}
                sent = await say(bot, event, channel, data, extras=extras)
                if (event, key) == ("ai-cancel", "run-client-id"):
                    await watch.expect(event, channel)
                else:
                    await bot.expect_refused(channel, *SPOOF, sent)
        for value in ("bot", ""):
            extras = ai(run_id="r", run_client_id=value, step_client_id=value)
            await say(bot, "ai-run-start", channel, "x", extras=extras)
            frame = await watch.expect("ai-run-start", channel)
            assert transport_of(frame)["run-client-id"] == value
        await say(bot, "ai-input", channel, "x", extras=ai(input_client_id=""))
        assert transport_of(await watch.expect("ai-input", channel)) == {"input-client-id": "bot"}
    everything = dict.fromkeys(("run-client-id", "input-client-id", "step-client-id"), "eve")
    ok(await publish(api, channel, everything))


async def test_run_check_08_the_versions_of_an_output(api: Api) -> None:
    """Its appends and updates are looked at like its create, also under another name."""
    channel = unique("ai:room")
    ack = ok(await publish(api, channel, {"run-id": "r", "status": "streaming"}))
    serial = ack["channels"][channel]["message_serial"]

    async def bad() -> None:
        for verb, body in (("append", {"data": "y"}), ("update", {}), ("delete", {})):
            for extras, (code, number) in (
                (ai(status="sleeping"), BAD_HEADER),
                (ai(turn_id="x"), BAD_HEADER),
                (ai(run_id="x" * 257), TOO_LARGE),
                ({"ai": {"codec": {"a b": "x"}}}, BAD_HEADER),
            ):
                response = await api.try_mutate(verb, channel, serial, extras=extras, **body)
                refused(response, 400, code, ai_code=number)

    before = await api.item(channel, serial)
    await bad()
    assert await api.item(channel, serial) == before
    await api.mutate("update", channel, serial, name="ai-other", op_id="renamed")
    await api.mutate("update", channel, serial, clear_fields=["name"])
    await bad()
    await api.mutate("update", channel, serial, name="chat.message")
    await bad()
    good = ai(run_id="r", status="complete", error_code="e")
    await api.mutate("append", channel, serial, data="z", extras=good)
    assert (await api.item(channel, serial))["data"] == "xz"


async def test_run_check_08_changes_on_behalf_of_sockets(node: ChannelsNode, api: Api) -> None:
    """A socket says no more by a change than by a publish: it cancels nothing, is nobody else."""
    verbs = ("update", "delete", "append")
    may = {"*": ["subscribe", "publish", *(f"message_{verb}_own" for verb in verbs)]}
    channel = unique("ai:room")
    async with node.v2(token=token("eve", may)) as eve, node.v2() as watch:
        await watch.subscribe(channel)
        await say(eve, "ai-input", channel, "one")
        said = (await watch.expect("ai-input", channel))["extras"]["headers"]
        await say(eve, "ai-cancel", channel, {"runId": "not yet"})
        asked = (await watch.expect("ai-cancel", channel))["extras"]["headers"]
        said, asked = (each["sockudo_message_serial"] for each in (said, asked))

        async def change(verb: str, serial: str, **body: Any) -> httpx.Response:
            return await api.try_mutate(verb, channel, serial, socket_id=eve.socket_id, **body)

        everything = json.dumps({"all": True})
        code, ai_code = NOT_PERMITTED
        for verb, body in (
            ("update", {"data": everything}),
            ("delete", {}),
            ("append", {"data": " "}),
        ):
            refused(await change(verb, asked, **body), 403, code, ai_code=ai_code)
        for name in ("ai-cancel", "ai-output", "ai-run-end", "ai-x"):
            refused(
                await change("update", said, name=name, data=everything), 403, code, ai_code=ai_code
            )
        for key in ("input-client-id", "run-client-id", "step-client-id"):
            extras = {"ai": {"transport": {key: "ana"}}}
            refused(await change("update", said, extras=extras), 403, SPOOF[0], ai_code=SPOOF[1])
        await nothing_else(api, channel, watch)
        ok(await change("update", said, data="two", extras=ai(input_client_id="eve", event_id="e")))
        await watch.expect("sockudo:message.update", channel)
        ok(await change("delete", said))
        await watch.expect("sockudo:message.delete", channel)
    # The app's own server may do what it likes.
    await api.mutate("update", channel, asked, data=everything)


async def test_run_check_09_where_it_applies(
    node: ChannelsNode, api: Api, tmp_path: Path, spare_store: Callable[[], Awaitable[str]]
) -> None:
    """Other messages, and other channels where prefixes are set, are what they were."""
    channel = unique("room")
    strange = {"ai": {"transport": {"turn-id": "x" * 500, "role": "boss"}}}
    ack = await api.publish(channel, "x", extras=strange)
    await api.mutate("append", channel, ack["message_serial"], data="y", extras=strange)
    refused(
        await api.events(channel, name="chat", extras=ai(status="x")),
        400,
        BAD_HEADER[0],
        ai_code=BAD_HEADER[1],
    )
    inside, outside = unique("ai:x"), unique("room")
    async with channels_server(
        tmp_path, await spare_store(), ai_transport={"channels": ["ai:"]}
    ) as other:
        ok(await other.api.events(outside, name="ai-output", data="x", extras=strange))
        ok(await other.api.events(outside, name="ai-cancel", data="no form"))
        response = await other.api.events(inside, name="ai-output", data="x", extras=strange)
        refused(response, 400, BAD_HEADER[0], ai_code=BAD_HEADER[1])
        body: Json = {"name": "ai-output", "channels": [outside, inside], "extras": strange}
        response = await other.api.post("/events", body)
        refused(response, 400, BAD_HEADER[0], ai_code=BAD_HEADER[1])
        async with other.v2(token=token("ana", CAN_PUBLISH)) as ana:
            sent = await say(ana, "ai-input", outside, "x")
            text = await ana.expect_refused(outside, *NOT_PERMITTED, sent)
            assert "channels.ai_transport.channels" in text
            await ana.subscribe(inside)
            await say(ana, "ai-input", inside, "x")
            await ana.expect("ai-input", inside)


# Cancels.


async def test_run_check_10_each_form_of_cancel(node: ChannelsNode, api: Api) -> None:
    """By the owner, another, a holder of `run_cancel_any`, and the signed API."""
    channel = unique("ai:room")
    await start(api, channel, "run-1", "ana")
    await start(api, channel, "run-2", None)
    await start(api, channel, "run-3", "")
    forms: tuple[tuple[Json, str], ...] = (
        ({"runId": "run-1"}, "ana admin"),
        ({"runId": "run-2"}, "admin"),
        ({"runId": "run-3"}, "admin"),
        ({"runId": "not-yet"}, "ana bob admin"),
        ({"own": True}, "ana bob admin"),
        ({"clientId": "ana"}, "ana admin"),
        ({"clientId": "bob"}, "bob admin"),
        ({"all": True}, "admin"),
    )
    async with (
        node.v2(token=token("ana", CAN_PUBLISH)) as ana,
        node.v2(token=token("bob", CAN_PUBLISH)) as bob,
        node.v2(token=token("admin", CAN_CANCEL)) as admin,
        node.v2() as signed_in,
        node.v2() as watch,
    ):
        await signed_in.signin("carl", {"run_cancel_any": ["ai:*"]})
        await watch.subscribe(channel)
        for data, allowed in forms:
            for name, peer in (("ana", ana), ("bob", bob), ("admin", admin)):
                sent = await say(peer, "ai-cancel", channel, data)
                if name in allowed.split():
                    frame = await watch.expect("ai-cancel", channel)
                    assert (frame["message_id"], json.loads(frame["data"])) == (sent, data)
                    assert transport_of(frame) == {"input-client-id": name}
                else:
                    text = await peer.expect_refused(channel, *NOT_PERMITTED, sent)
                    assert "run_cancel_any" in text
            ok(await api.events(channel, name="ai-cancel", data=data))
            await watch.expect("ai-cancel", channel)
        for odd in ("a\0b", "\u00e9" * 128, "'; --"):
            await start(api, channel, odd, "ana")
            await watch.expect("ai-run-start", channel)
            await say(bob, "ai-cancel", channel, {"runId": odd})
            assert (await bob.expect(":error", channel))["data"]["ai_code"] == 104003
        await say(signed_in, "ai-cancel", channel, {"all": True})
        await watch.expect("ai-cancel", channel)
        extras = ai(run_id="run-1", run_client_id="ana")
        await say(ana, "ai-cancel", channel, {"runId": "run-1"}, extras=extras)
        frame = await watch.expect("ai-cancel", channel)
        assert transport_of(frame) == {**transport_of({"extras": extras}), "input-client-id": "ana"}
        await nothing_else(api, channel, watch)


async def test_run_check_10_the_owner_is_the_first(node: ChannelsNode, api: Api) -> None:
    """A run that is begun again stays its owner's; a cancel that was accepted is so again."""
    channel, key = unique("ai:room"), unique("m")
    async with node.v2(token=token("bob", CAN_PUBLISH)) as bob, node.v2() as watch:
        await watch.subscribe(channel)
        await say(bob, "ai-cancel", channel, {"runId": "r"}, key)
        await watch.expect("ai-cancel", channel)
        await start(api, channel, "r", "ana")
        await start(api, channel, "r", "bob")
        for _ in range(2):
            await watch.expect("ai-run-start", channel)
        await say(bob, "ai-cancel", channel, {"runId": "r"}, key)
        await bob.quiet()
        sent = await say(bob, "ai-cancel", channel, {"runId": "r"})
        await bob.expect_refused(channel, *NOT_PERMITTED, sent)
        await nothing_else(api, channel, watch)
        ok(await api.post("/forget", {"channel": channel, "reason": "a test"}))
        await say(bob, "ai-cancel", channel, {"runId": "r"})
        await watch.expect("ai-cancel", channel)


async def test_run_check_10_where_no_history_is_kept(
    tmp_path: Path, spare_store: Callable[[], Awaitable[str]]
) -> None:
    """Whose a run is is known there too, though not its start."""
    channel = unique("ai:room")
    async with (
        channels_server(tmp_path, await spare_store(), history={"channels": ["kept"]}) as node,
        node.v2(token=token("ana", CAN_PUBLISH)) as ana,
        node.v2(token=token("bob", CAN_PUBLISH)) as bob,
        node.v2() as watch,
    ):
        await watch.subscribe(channel)
        await start(node.api, channel, "r", "ana")
        await start(node.api, channel, "r", "bob")
        for _ in range(2):
            await watch.expect("ai-run-start", channel)
        sent = await say(bob, "ai-cancel", channel, {"runId": "r"})
        await bob.expect_refused(channel, *NOT_PERMITTED, sent)
        await say(ana, "ai-cancel", channel, {"runId": "r"})
        assert transport_of(await watch.expect("ai-cancel", channel)) == {"input-client-id": "ana"}
        assert (await node.api.get(f"{channel_path(channel)}/history")).status_code != 200


async def test_run_check_11_cancels_that_are_none(node: ChannelsNode, api: Api) -> None:
    """The data has one of the four forms, and metadata beside it says the same."""
    channel = unique("ai:room")
    wrong: tuple[object, ...] = (
        *("", "stop", "null", "[]", [], 7, {}, {"runid": "r"}, {"runId": ""}, {"runId": 7}),
        *({"own": False}, {"own": "true"}, {"all": 1}, {"clientId": None}, {"clientId": ""}),
        *({"runId": "r", "own": True}, {"runId": "x" * 257}, {"clientId": "x" * 129}),
        '{"own":true,"own":true}',
    )
    for data in wrong:
        response = await api.events(channel, name="ai-cancel", data=data)
        assert "runId" in refused(response, 400, "invalid_input")
    refused(await api.events(channel, name="ai-cancel"), 400, "invalid_input")
    for data, extras in (
        ({"runId": "r"}, ai(run_id="q")),
        ({"clientId": "ana"}, ai(run_client_id="bob")),
        *(({form: True}, ai(run_id="r")) for form in ("own", "all")),
        ({"clientId": "ana"}, ai(run_id="r", run_client_id="ana")),
    ):
        response = await api.events(channel, name="ai-cancel", data=data, extras=extras)
        refused(response, 400, BAD_HEADER[0], ai_code=BAD_HEADER[1])
    async with node.v2(token=token("ana", CAN_PUBLISH)) as ana:
        sent = await say(ana, "ai-cancel", channel, "stop")
        await ana.expect_refused(channel, "invalid_input", None, sent)
        for data in ({"own": True}, {"runId": "not yet"}):
            # An agent that reads the metadata alone would end runs of somebody else.
            sent = await say(ana, "ai-cancel", channel, data, extras=ai(run_client_id="bob"))
            await ana.expect_refused(channel, *SPOOF, sent)
    ok(await api.events(channel, name="ai-cancel", data='{"runId":"x","why":"boring"}'))


async def test_run_check_12_a_window_for_rollups(node: ChannelsNode) -> None:
    """0, 20, 40, 100 and 500 connect; anything else is refused at the handshake."""
    for window in ("0", "20", "40", "100", "500"):
        async with node.v2(append_rollup_window=window) as peer:
            await peer.quiet()
    url = node.url(f"{V2_QUERY}&append_rollup_window=60").replace("ws", "http", 1)
    headers = {
        "connection": "Upgrade",
        "upgrade": "websocket",
        "sec-websocket-version": "13",
        "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ==",
    }
    async with httpx.AsyncClient(verify=False) as client:
        response = await client.get(url, headers=headers)
    refused(response, 400, "ai_rollup_window_invalid", ai_code=104004)


# Orphans.


@pytest.fixture
def quick_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests move the server's time, and wait in their own."""
    from tidelog.channels.upkeep import streams

    monkeypatch.setattr(streams, "SWEEP_SECONDS", 0.05)


@asynccontextmanager
async def serving(
    directory: Path, store: str, clock: FakeClock, **limits: Any
) -> AsyncIterator[ChannelsNode]:
    """A server whose time the test moves."""
    async with channels_server(directory, store, clock=clock, ai_transport=limits) as node:
        node.api.now = lambda: clock.now_ms() / 1000
        yield node


async def output(api: Api, channel: str, run: str | None, **transport: str) -> str:
    """A message of a run that is being written; returns its serial."""
    extras = ai(status="streaming", stream="true", **transport)
    if run is not None:
        extras["ai"]["transport"]["run-id"] = run
    answer = ok(await api.events(channel, name="ai-output", data="x", extras=extras))
    found: str = answer["channels"][channel]["message_serial"]
    return found


async def expect_end(peer: Peer, channel: str, run: str, **transport: str) -> None:
    """The run ends as the server ends it."""
    frame = await peer.expect("ai-run-end", channel)
    wanted = {"run-id": run, "run-reason": "error", "error-code": "orphan_timeout"}
    wanted |= {key.replace("_", "-"): said for key, said in transport.items()}
    assert transport_of(frame) == wanted
    assert frame["data"] == "null"
    assert "user_id" not in frame


async def expect_cancelled(peer: Peer, channel: str, serial: str) -> Json:
    """A message was ended by the server."""
    frame = await peer.expect("sockudo:message.update", channel)
    assert frame["extras"]["headers"]["sockudo_message_serial"] == serial
    assert transport_of(frame)["status"] == "cancelled"
    assert transport_of(frame)["error-code"] == "orphan_timeout"
    return frame


@pytest.mark.inside
@pytest.mark.usefixtures("quick_sweep")
async def test_run_check_13_an_orphan_ends_its_run(tmp_path: Path, stores: Stores) -> None:
    """One open message: its update, then `ai-run-end`, both by `server`, once; V1 sees the end."""
    clock, channel = FakeClock(), unique("ai:room")
    async with (
        serving(tmp_path, await stores("runs, one"), clock) as node,
        node.v2() as watch,
        node.v1() as old,
    ):
        api = node.api
        await start(api, channel, "r", "ana")
        serial = await output(api, channel, "r", run_client_id="ana", invocation_id="i1")
        await watch.subscribe(channel)
        await old.subscribe(channel)
        clock.advance(TIMEOUT_MS)
        await expect_cancelled(watch, channel, serial)
        await expect_end(watch, channel, "r", run_client_id="ana", invocation_id="i1")
        plain = {"event": "ai-run-end", "channel": channel, "data": "null"}
        assert await old.receive() == plain
        clock.advance(TIMEOUT_MS)
        await asyncio.sleep(0.2)
        await nothing_else(api, channel, watch)
        entries = await node.server.store.stream_entries(f"channels/tide/{channel}", 2)
        made = [(entry.kind, entry.actor) for entry in entries][:2]
        assert made == [("message.update", "server"), ("message.create", "server")]
        items = (await api.history(channel, direction="oldest_first"))["items"]
        names = [item["message"]["name"] for item in items]
        assert names == ["ai-run-start", "ai-output", "ai-run-end", "marker"]


@pytest.mark.usefixtures("quick_sweep")
async def test_run_check_14_two_open_messages(tmp_path: Path, stores: Stores) -> None:
    """A run ends with the last of its messages, whether they are ended together or not."""
    clock, store = FakeClock(), await stores("runs, two")
    async with serving(tmp_path, store, clock) as node, node.v2() as watch:
        api = node.api
        together, apart = unique("ai:room"), unique("ai:room")
        first = [await output(api, together, "r"), await output(api, together, "r")]
        other = await output(api, together, "s")
        await watch.subscribe(together)
        clock.advance(TIMEOUT_MS - 10)
        await api.mutate("append", together, other, data="y")
        await watch.expect("sockudo:message.append", together)
        clock.advance(10)
        frames = [await watch.receive() for _ in range(3)]
        ended = {f["extras"]["headers"]["sockudo_message_serial"] for f in frames[:2]}
        assert ended == set(first)
        assert [f["event"] for f in frames] == ["sockudo:message.update"] * 2 + ["ai-run-end"]
        assert transport_of(frames[2])["run-id"] == "r"
        clock.advance(TIMEOUT_MS)
        await expect_cancelled(watch, together, other)
        await expect_end(watch, together, "s")

        one = await output(api, apart, "r")
        two = await output(api, apart, "r")
        await watch.subscribe(apart)
        clock.advance(TIMEOUT_MS // 2)
        await api.mutate("append", apart, two, data="y")
        await watch.expect("sockudo:message.append", apart)
        clock.advance(TIMEOUT_MS // 2)
        await expect_cancelled(watch, apart, one)
        await asyncio.sleep(0.2)
        await nothing_else(api, apart, watch)
        await api.mutate("append", apart, two, data="z", extras=ai(run_id="r", status="complete"))
        await watch.expect("sockudo:message.append", apart)
        clock.advance(TIMEOUT_MS)
        await asyncio.sleep(0.2)
        await nothing_else(api, apart, watch)  # its agent lives, and says itself how it ends


@pytest.mark.usefixtures("quick_sweep")
async def test_run_check_14_many_runs_in_one_channel(tmp_path: Path, stores: Stores) -> None:
    """Each ends once, after a restart too, however many are found at once."""
    clock, channel, store = FakeClock(), unique("ai:room"), await stores("runs, many")
    async with serving(tmp_path, store, clock) as node:
        for number in range(40):
            await output(node.api, channel, f"r{number % 20}")
    async with serving(tmp_path, store, clock) as node, node.v2() as watch:
        await watch.subscribe(channel)
        clock.advance(TIMEOUT_MS)
        open_messages = dict.fromkeys((f"r{n}" for n in range(20)), 2)
        for _ in range(60):
            frame = await watch.receive()
            run = transport_of(frame)["run-id"]
            if frame["event"] == "ai-run-end":
                assert open_messages.pop(run) == 0
            else:
                open_messages[run] -= 1
        assert open_messages == {}
        await nothing_else(node.api, channel, watch)


@pytest.mark.inside
@pytest.mark.usefixtures("quick_sweep")
async def test_run_check_15_at_the_limit_of_appends(tmp_path: Path, stores: Stores) -> None:
    """A message that takes no append any more is ended, with its other extras as they were."""
    clock, channel = FakeClock(), unique("ai:room")
    extras = {
        "headers": {"tenant": "acme", "n": 1},
        "mine": {"kept": [1, 2.50, "\u00e9"]},
        "ai": {
            "transport": {"run-id": "r", "status": "streaming", "model": "m", "stream": "true"},
            "codec": {"status": "streaming", "providerMetadata": "{}"},
            "other": {"x": None},
        },
    }
    async with serving(tmp_path, await stores("runs, limit"), clock) as node, node.v2() as watch:
        api = node.api
        answer = ok(await api.events(channel, name="ai-output", data="", extras=extras))
        serial = answer["channels"][channel]["message_serial"]
        append = parse_mutation("append", channel, serial, b'{"data":"x"}')
        for _ in range(16):  # without HTTP, which would take minutes
            await asyncio.gather(*(node.surface.service.mutate(APP, append) for _ in range(256)))
        response = await api.try_mutate("append", channel, serial, data="x")
        refused(response, 413, "payload_too_large", ai_code=40009)
        await watch.subscribe(channel)
        clock.advance(TIMEOUT_MS)
        frame = await expect_cancelled(watch, channel, serial)
        await expect_end(watch, channel, "r")
        assert frame["data"] == "x" * 4096
        kept = json.loads(json.dumps(frame["extras"]))
        headers = kept["headers"].items()
        kept["headers"] = {k: v for k, v in headers if not k.startswith("sockudo_")}
        wanted = json.loads(json.dumps(extras))
        wanted["ai"]["transport"] |= {"status": "cancelled", "error-code": "orphan_timeout"}
        assert kept == wanted


@pytest.mark.inside
@pytest.mark.usefixtures("quick_sweep")
async def test_run_check_16_orphans_without_a_run(tmp_path: Path, stores: Stores) -> None:
    """No run ends with a message that names none, that is no output, or that an operator ends."""
    clock, channel = FakeClock(), unique("ai:room")
    async with serving(tmp_path, await stores("runs, none"), clock) as node, node.v2() as watch:
        api = node.api
        await watch.subscribe(channel)
        await output(api, channel, None)
        ok(await api.events(channel, name="chat", extras=ai(run_id="r", status="streaming")))
        for name in ("ai-output", "chat"):
            await watch.expect(name, channel)
        clock.advance(TIMEOUT_MS)
        for _ in range(2):
            await watch.expect("sockudo:message.update", channel)
        serial = await output(api, channel, "r")
        await watch.expect("ai-output", channel)
        assert await node.surface.owner.streams.close("tide", channel, serial, 0)
        await watch.expect("sockudo:message.update", channel)
        await nothing_else(api, channel, watch)


@pytest.mark.usefixtures("quick_sweep")
async def test_run_check_17_two_nodes(tmp_path: Path, postgresql_server: str) -> None:
    """Both look for orphans, and each run ends once; whose a run is both know."""
    clock, channel = FakeClock(), unique("ai:room")
    store = await create_database(postgresql_server)
    async with AsyncExitStack() as stack:
        nodes = [
            await stack.enter_async_context(serving(tmp_path / name, store, clock))
            for name in ("a", "b")
        ]
        a, b = nodes
        watch = await stack.enter_async_context(a.v2())
        bob = await stack.enter_async_context(b.v2(token=token("bob", CAN_PUBLISH)))
        await watch.subscribe(channel)
        await start(a.api, channel, "r0", "ana")
        await watch.expect("ai-run-start", channel)
        sent = await say(bob, "ai-cancel", channel, {"runId": "r0"})
        await bob.expect_refused(channel, *NOT_PERMITTED, sent)
        key = await say(bob, "ai-input", channel, "once")
        await watch.expect("ai-input", channel)
        await say(bob, "ai-input", channel, "once", key)
        for number in range(12):
            await output(nodes[number % 2].api, channel, f"r{number // 2}")
            await watch.expect("ai-output", channel)
        clock.advance(TIMEOUT_MS)
        frames = [await watch.receive() for _ in range(18)]
        runs = [transport_of(f)["run-id"] for f in frames if f["event"] == "ai-run-end"]
        assert sorted(runs) == [f"r{n}" for n in range(6)]
        for node in nodes:
            await nothing_else(node.api, channel, watch)
