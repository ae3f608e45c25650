"""Checks 49-56 of the channels contract: who may mutate what."""

from typing import Any

import httpx
import pytest

from support.channels.peer import (
    PLAIN,
    Api,
    ChannelsNode,
    Peer,
    message_path,
    refused,
    token,
    unique,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

MUTATIONS = ("update", "delete", "append")
ALL_OWN = {f"message_{kind}_own": ["*"] for kind in MUTATIONS}
ALL_ANY = {f"message_{kind}_any": ["*"] for kind in MUTATIONS}


def denied(response: httpx.Response) -> str:
    """The text of a 401 (channels D1)."""
    extra = {"ai_code": 93002} if "ai_code" in response.json() else {}
    return refused(response, 401, "auth_failed", **extra)


def not_allowed(kind: str, channel: str) -> str:
    """The sentence of a missing capability."""
    return f"Connection is not allowed to {kind} message on channel '{channel}'"


async def attempt(
    api: Api, kind: str, channel: str, serial: str, peer: Peer, **body: Any
) -> httpx.Response:
    """A mutation by a socket."""
    body = {"data": "x", "socket_id": peer.socket_id, **body}
    return await api.try_mutate(kind, channel, serial, **body)


async def is_unchanged(api: Api, channel: str, serial: str) -> bool:
    """Whether a message has only its create."""
    return len((await api.versions(channel, serial))["items"]) == 1


async def test_check_49_no_socket(node: ChannelsNode, api: Api) -> None:
    """The application's own server may change any message; `client_id` is only noted."""
    channel = unique()
    async with node.v2() as ana:
        await ana.signin("ana")
        owned = await api.publish(channel, "x", socket_id=ana.socket_id)
    unowned = await api.publish(channel, "x")
    for ack in (owned, unowned):
        for kind in MUTATIONS:
            answer = await api.mutate(kind, channel, ack["message_serial"], data="y")
            assert answer["status"] == "applied"
        item = await api.item(channel, ack["message_serial"])
        assert "client_id" not in item["version"]
        await api.mutate("update", channel, ack["message_serial"], data="z", client_id="anyone")
        item = await api.item(channel, ack["message_serial"])
        assert item["version"]["client_id"] == "anyone"


async def test_check_50_dead_and_old_sockets(node: ChannelsNode, api: Api) -> None:
    """A socket that is not there, is another app's, or speaks V1 is no actor."""
    channel = unique()
    ack = await api.publish(channel, "x")
    serial = ack["message_serial"]
    async with node.v1() as v1, node.v2(PLAIN) as foreign:
        await v1.signin("ana", ALL_ANY)
        async with node.v2() as gone:
            await gone.signin("ana", ALL_ANY)
            assert (await attempt(api, "update", channel, serial, gone)).status_code == 200
        for kind in MUTATIONS:
            text = denied(await attempt(api, kind, channel, serial, v1))
            assert text == "Mutation actor socket must use protocol V2"
            for absent in ("123.456", foreign.socket_id):
                response = await api.try_mutate(kind, channel, serial, data="x", socket_id=absent)
                assert denied(response) == f"Mutation actor socket '{absent}' is not connected"
            for malformed in ("x", "1", "1.", ".1", "1.2.3", "-1.2", ""):
                response = await api.try_mutate(
                    kind, channel, serial, data="x", socket_id=malformed
                )
                refused(response, 400, "invalid_input")
        response = await attempt(api, "update", channel, serial, gone)
        for _ in range(200):  # the server may see the end of a connection a little later
            if response.status_code != 200:
                break
            response = await attempt(api, "update", channel, serial, gone)
        assert denied(response) == f"Mutation actor socket '{gone.socket_id}' is not connected"


async def test_check_51_no_capabilities(node: ChannelsNode, api: Api) -> None:
    """Without capabilities, not signed in, or with others: the same sentence (channels D1)."""
    channel = unique("private-room")
    async with node.v2() as ana, node.v2() as nobody, node.v2() as other, node.v2() as member:
        await ana.signin("ana")
        await other.signin("other", {"message_update_any": ["elsewhere"], "subscribe": ["*"]})
        await member.subscribe(unique("presence-lab"), {"user_id": "ana"})
        ack = await api.publish(channel, "x", socket_id=ana.socket_id)
        for peer in (ana, nobody, other, member):
            for kind in MUTATIONS:
                response = await attempt(api, kind, channel, ack["message_serial"], peer)
                assert denied(response) == not_allowed(kind, channel)
    assert await is_unchanged(api, channel, ack["message_serial"])


async def test_check_52_own_grant(node: ChannelsNode, api: Api) -> None:
    """The creator may, anybody else may not, and without a creator nobody may."""
    channel = unique("private-room")
    async with node.v2() as ana, node.v2() as bo, node.v2() as watch:
        await ana.signin("ana", {"message_append_own": ["private-*"]})
        await bo.signin("bo", {"message_append_own": ["private-*"]})
        for peer in (watch, ana):
            await peer.subscribe(channel)
        ack = await api.publish(channel, "a", socket_id=ana.socket_id)
        serial = ack["message_serial"]
        response = await attempt(api, "append", channel, serial, bo)
        text = "Connection client 'bo' is not allowed to append message owned by 'ana'"
        assert denied(response) == text
        assert await is_unchanged(api, channel, serial)
        response = await attempt(api, "append", channel, serial, ana, data="b")
        assert response.status_code == 200
        item = await api.item(channel, serial)
        assert (item["data"], item["version"]["client_id"]) == ("ab", "ana")
        for kind in ("update", "delete"):  # each kind has its own capability
            response = await attempt(api, kind, channel, serial, ana)
            assert denied(response) == not_allowed(kind, channel)
        assert (await watch.receive())["user_id"] == "ana"
        for peer in (watch, ana):  # the acting socket is not excluded from its own mutation
            assert (await peer.expect("sockudo:message.append", channel))["user_id"] == "ana"
        unowned = await api.publish(channel, "a")
        response = await attempt(api, "append", channel, unowned["message_serial"], ana)
        assert denied(response) == (
            "Cannot authorize own-scoped append because the original message creator is "
            "unidentified"
        )
        async with node.v2() as again:  # ownership is the user's, not the socket's
            await again.signin("ana", {"message_append_own": [channel]})
            response = await attempt(api, "append", channel, serial, again, data="c")
            assert response.status_code == 200
        assert (await api.item(channel, serial))["data"] == "abc"


async def test_check_53_any_grant_of_a_pattern(node: ChannelsNode, api: Api) -> None:
    """`message_delete_any` on `private-ai:*` is for deletes there and for nothing else."""
    channel, elsewhere = unique("private-ai:user-42:x"), unique("private-other")
    async with node.v2() as ana, node.v2() as moderator:
        await ana.signin("ana")
        await moderator.signin("mod", {"message_delete_any": ["private-ai:*"]})
        ack = await api.publish(channel, "x", socket_id=ana.socket_id)
        serial = ack["message_serial"]
        for kind in ("update", "append"):
            response = await attempt(api, kind, channel, serial, moderator)
            assert denied(response) == not_allowed(kind, channel)
        assert await is_unchanged(api, channel, serial)
        response = await attempt(api, "delete", channel, serial, moderator)
        assert response.status_code == 200
        item = await api.item(channel, serial)
        assert (item["action"], item["version"]["client_id"]) == ("delete", "mod")
        ack = await api.publish(elsewhere, "x", socket_id=ana.socket_id)
        response = await attempt(api, "delete", elsewhere, ack["message_serial"], moderator)
        assert denied(response) == not_allowed("delete", elsewhere)


async def test_check_54_client_id_of_the_body(node: ChannelsNode, api: Api) -> None:
    """It must be the socket's own; an unidentified socket has none."""
    channel = unique()
    async with node.v2() as ana, node.v2() as nobody:
        await ana.signin("ana", ALL_ANY)
        ack = await api.publish(channel, "x")
        serial = ack["message_serial"]
        for kind in MUTATIONS:
            response = await attempt(api, kind, channel, serial, ana, client_id="bo")
            assert denied(response) == (
                "Requested client_id 'bo' does not match authenticated actor 'ana'"
            )
            response = await attempt(api, kind, channel, serial, nobody, client_id="ana")
            assert denied(response) == (
                "Mutation actor socket is not signed in with an identified client"
            )
        assert await is_unchanged(api, channel, serial)
        response = await attempt(api, "update", channel, serial, ana, client_id="ana")
        assert response.status_code == 200
        assert (await api.item(channel, serial))["version"]["client_id"] == "ana"


PATTERNS: list[tuple[str, list[str], list[str]]] = [
    ("*", ["a", "private-x:y"], []),
    ("pat-a:b", ["pat-a:b"], ["pat-a:bc", "pat-a", "xpat-a:b", "Pat-a:b"]),
    ("pat*", ["pat", "pat-1", "pat:x:y"], ["xpat", "Pat-1", "pa"]),
    ("*pat", ["pat", "x-pat", "a:b:pat"], ["pat-1", "x-Pat"]),
    ("a*b", ["ab", "a:x:b", "aab"], ["a", "b", "abc", "xab", "A:b"]),
    ("a*b*c", [], ["abc", "a1b2c", "a.b.c"]),
    ("a*b*", [], ["ab", "a1b", "a1b2"]),
    ("*a*", [], ["a", "xax"]),
    ("**", [], ["a"]),
    ("", [], ["a"]),
    ("private-*", ["private-a"], ["presence-a", "a"]),
]


@pytest.mark.parametrize(
    ("pattern", "inside", "outside"), PATTERNS, ids=[row[0] or "empty" for row in PATTERNS]
)
async def test_check_55_patterns(
    node: ChannelsNode, api: Api, pattern: str, inside: list[str], outside: list[str]
) -> None:
    """The table of channels 7.2, on full names and case-sensitive."""
    async with node.v2() as peer:
        await peer.signin("ana", {"message_update_any": ["no-match", pattern]})
        for channel, status in [(name, 200) for name in inside] + [(n, 401) for n in outside]:
            ack = await api.publish(channel, "x")
            response = await attempt(api, "update", channel, ack["message_serial"], peer)
            assert (channel, response.status_code) == (channel, status)


async def test_check_56_ownership_stays(node: ChannelsNode, api: Api) -> None:
    """Who edits by an any-grant does not become the owner."""
    channel = unique()
    async with node.v2() as ana, node.v2() as bo, node.v2() as own_bo:
        await ana.signin("ana", ALL_OWN)
        await bo.signin("bo", ALL_ANY)
        await own_bo.signin("bo", ALL_OWN)
        ack = await api.publish(channel, "x", socket_id=ana.socket_id)
        serial = ack["message_serial"]
        for kind in MUTATIONS:
            assert (await attempt(api, kind, channel, serial, bo)).status_code == 200
            assert (await api.item(channel, serial))["version"]["client_id"] == "bo"
            assert (await attempt(api, kind, channel, serial, ana)).status_code == 200
            assert (await api.item(channel, serial))["version"]["client_id"] == "ana"
            response = await attempt(api, kind, channel, serial, own_bo)
            assert denied(response) == (
                f"Connection client 'bo' is not allowed to {kind} message owned by 'ana'"
            )


# Beyond the numbered checks.


async def test_an_empty_list_denies(node: ChannelsNode, api: Api) -> None:
    """7.2: no pattern, no grant."""
    channel = unique()
    ack = await api.publish(channel, "x")
    async with node.v2() as ana:
        await ana.signin("ana", {"message_update_any": [], "message_update_own": []})
        response = await attempt(api, "update", channel, ack["message_serial"], ana)
        assert denied(response) == not_allowed("update", channel)


async def test_authorization_comes_before_the_replay(node: ChannelsNode, api: Api) -> None:
    """A repeated operation is not answered to a socket that may not do it (channels 7.3)."""
    channel = unique()
    async with node.v2() as ana, node.v2() as bo:
        await ana.signin("ana", ALL_ANY)
        await bo.signin("bo")
        ack = await api.publish(channel, "x")
        serial = ack["message_serial"]
        first = await attempt(api, "append", channel, serial, ana, op_id="o")
        assert first.status_code == 200
        response = await attempt(api, "append", channel, serial, bo, op_id="o")
        assert denied(response) == not_allowed("append", channel)
        response = await attempt(api, "append", channel, serial, ana, op_id="o")
        assert response.json()["status"] == "duplicate"


async def test_an_operation_is_its_actors_own(node: ChannelsNode, api: Api) -> None:
    """5.6: the same operation under the same id by somebody else is another payload."""
    channel = unique()
    async with node.v2() as ana, node.v2() as again, node.v2() as bo:
        for peer, name in ((ana, "ana"), (again, "ana"), (bo, "bo")):
            await peer.signin(name, ALL_ANY)
        ack = await api.publish(channel, "x")
        serial = ack["message_serial"]
        first = await attempt(api, "append", channel, serial, ana, op_id="o")
        assert first.json()["status"] == "applied"
        response = await attempt(api, "append", channel, serial, again, op_id="o")
        assert response.json() == {**first.json(), "status": "duplicate"}
        response = await attempt(api, "append", channel, serial, bo, op_id="o")
        text = refused(response, 400, "invalid_input")
        assert "idempotency key was already used with a different payload" in text
        response = await api.try_mutate("append", channel, serial, data="x", op_id="o")
        refused(response, 400, "invalid_input")
        assert (await api.item(channel, serial))["data"] == "xx"


async def test_a_missing_message_is_404_to_everybody(node: ChannelsNode, api: Api) -> None:
    """5.7: whether it exists is looked at before the actor."""
    async with node.v2() as nobody:
        response = await attempt(api, "update", unique(), "0", nobody)
        refused(response, 404, "not_found")


async def test_a_presence_user_owns_what_it_publishes(node: ChannelsNode, api: Api) -> None:
    """`channel_data.user_id` identifies a socket that has no other id, without any grant."""
    channel = unique("presence-lab")
    async with node.v2() as member, node.v2() as ana:
        await member.subscribe(channel, {"user_id": "ana"})
        ack = await api.publish(channel, "x", socket_id=member.socket_id)
        await ana.signin("ana", ALL_OWN)
        response = await attempt(api, "update", channel, ack["message_serial"], ana)
        assert response.status_code == 200
        response = await attempt(api, "update", channel, ack["message_serial"], member)
        assert denied(response) == not_allowed("update", channel)


async def test_token_sockets_also_need_publish(node: ChannelsNode, api: Api) -> None:
    """7.3, point 4; both spellings of an operation are the same."""
    channel = unique("private-ai:room")
    ack = await api.publish(channel, "x")
    serial = ack["message_serial"]
    for operations, status in (
        (["message_update_any"], 401),
        (["message-update-any", "publish"], 200),
        (["message_update_any", "publish"], 200),
        (["publish"], 401),
    ):
        capability = {"private-ai:*": operations}
        async with node.v2(token=token("ana", capability)) as peer:
            response = await attempt(api, "update", channel, serial, peer)
            assert response.status_code == status, operations
            if status == 401:
                assert denied(response) == not_allowed("update", channel)
    versions = await api.versions(channel, serial)
    assert [item["version"].get("client_id") for item in versions["items"]] == ["ana", "ana", None]


async def test_reads_need_no_socket(node: ChannelsNode, api: Api) -> None:
    """GET is for the application, whatever capabilities there are."""
    channel = unique("private-room")
    ack = await api.publish(channel, "x")
    response = await api.get(message_path(channel, ack["message_serial"]), socket_id="1.1")
    assert response.status_code == 200
