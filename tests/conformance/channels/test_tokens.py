"""Capability tokens of the channels contract (channels 2.5): who they let in, and how they end."""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import jwt
import pytest

from support.channels.peer import (
    APP,
    PLAIN,
    V1_QUERY,
    V2_QUERY,
    Api,
    ChannelsNode,
    Peer,
    channels_server,
    ok,
    refused,
    signin_auth,
    token,
    unique,
)
from support.serve import workers
from tidelog.channels.protocol import revocations
from tidelog.testing.clock import FakeClock

pytestmark = pytest.mark.asyncio(loop_scope="module")

Stores = Callable[[str], Awaitable[str]]

EVERYTHING = {"*": ["subscribe", "publish", "history", "presence"]}


async def assert_refused(node: ChannelsNode, text: str) -> None:
    """A connection with this token is told 4009 and closed with it."""
    async with node.open(f"{V2_QUERY}&token={text}", protocol=2) as peer:
        await peer.expect_error(4009)
        assert await peer.closed() == 4009


async def test_a_token_says_what_its_socket_may_do(node: ChannelsNode, api: Api) -> None:
    """What it does not name is denied; the map may be an object or its text."""
    yes, no = unique("private-yes"), unique("private-no")
    await api.publish(yes, "old")
    for capability in (
        {"private-yes*": ["subscribe"], "private-no*": ["publish"]},
        json.dumps({"private-yes*": ["subscribe"], "private-no*": ["publish"]}),
    ):
        async with node.v2(token=token("ana", capability)) as peer:
            await peer.subscribe(yes)
            await peer.attach(no)
            await peer.expect_denied(no)
            await peer.send("client-x", "1", channel=yes)
            await peer.expect_error(4301)
            await peer.send("channel_history", {"channel": yes})
            assert (await peer.receive())["event"] == "sockudo:error"
            lab = unique("presence-lab")
            await peer.attach(lab, {"user_id": "ana"})
            await peer.expect_denied(lab)
            await peer.quiet()
        async with node.v2(token=token("ana", capability)) as peer:
            await peer.attach(yes, rewind=1)  # history is not granted
            assert (await peer.receive())["event"] == "sockudo:error"
    async with node.v2(token=token("ana", EVERYTHING)) as peer, node.v2() as watch:
        await watch.subscribe(yes)
        await peer.subscribe(yes, rewind=1)
        assert (await peer.receive())["data"] == "old"
        await peer.expect(":rewind_complete", yes)
        await peer.send("client-x", "1", channel=yes)
        assert (await watch.expect("client-x", yes))["user_id"] == "ana"
        await peer.expect("client-x", yes)
        await peer.send("channel_history", {"channel": yes})
        await peer.expect(":channel_history", yes)
        await peer.subscribe(unique("presence-lab"), {"user_id": "ana"})


async def test_tokens_that_let_nobody_in(node: ChannelsNode) -> None:
    """Each is wrong in one way."""
    now = int(time.time())
    many = {f"c{number}": ["subscribe"] for number in range(101)}
    wrong = [
        "garbage",
        token(secret=PLAIN.secret),
        token(kid=PLAIN.key),
        token(app=PLAIN),
        token(exp=now - 60, iat=now - 120),
        token(exp=None),
        token(iat=None),
        token(jti=None),
        token(jti=""),
        token(jti="j" * 129),
        token(client_id="c" * 129),
        token(client_id=""),
        token(nbf=now + 120),
        token(iat=now + 120),
        token(exp=now + 86_400 + 120),
        token(capability={"*": ["fly"]}),
        token(capability={"*": "subscribe"}),
        token(capability=["*"]),
        token(capability="{"),
        token(capability=many),
        token(extra="x" * 8192),
        jwt.encode({"exp": now + 60, "iat": now, "jti": "j"}, "", "none"),
        jwt.encode(
            {"x-sockudo-client-id": "a", "exp": now + 60, "iat": now, "jti": "j"},
            APP.secret * 2,
            "HS512",
            headers={"kid": APP.key},
        ),
    ]
    for text in wrong:
        await assert_refused(node, text)


async def test_tokens_at_the_edge(node: ChannelsNode) -> None:
    """The skew of 30 s holds in both directions; 24 h and 100 patterns are allowed."""
    now = int(time.time())
    hundred = {f"c{number}": ["subscribe"] for number in range(100)}
    for text in (
        token(nbf=now + 20),
        token(iat=now + 20),
        token(exp=now + 86_400, iat=now),
        token(capability=hundred),
        token(jti="j" * 128),
        token(client_id="c" * 128),
    ):
        async with node.v2(token=text) as peer:
            await peer.quiet()


async def test_v1_does_not_read_tokens(node: ChannelsNode) -> None:
    """`token` is of V2 only."""
    async with node.open(f"{V1_QUERY}&token=garbage") as peer:
        await peer.expect(":connection_established")
        await peer.subscribe(unique())


async def test_signing_in_on_a_token_socket(node: ChannelsNode) -> None:
    """A socket has one source of rights."""
    async with node.v2(token=token()) as peer:
        user_data = '{"id":"bo"}'
        auth = signin_auth(peer.socket_id, user_data)
        await peer.send("signin", {"auth": auth, "user_data": user_data})
        await peer.expect_error(4009)


async def test_refresh(node: ChannelsNode) -> None:
    """`auth_success` tells the new token's claims; its rights replace the old ones."""
    channel, exp = unique("private-room"), int(time.time()) + 600
    async with node.v2(token=token("ana", {"none": ["subscribe"]})) as peer:
        await peer.attach(channel)
        await peer.expect_denied(channel)
        fresh = token("ana", EVERYTHING, jti="fresh", exp=exp)
        await peer.send("auth", {"token": fresh})
        frame = await peer.expect(":auth_success")
        assert frame["data"] == {"client_id": "ana", "jti": "fresh", "exp": exp}
        await peer.subscribe(channel)
        await peer.send("auth", {"token": token("bo", EVERYTHING)})  # the client may not change
        await peer.expect_error(4009)


async def test_revocation(node: ChannelsNode, api: Api) -> None:
    """By `jti` or by client: the sockets are told 40160 and closed, and cannot come back."""

    async def assert_revoked(peer: Peer) -> None:
        frame = await peer.expect(":token_expired")
        assert frame["data"]["code"] == 40160
        assert await peer.closed() == 4009

    client, jti = unique("client"), unique("jti")
    text = token(client, EVERYTHING, jti=jti)
    counted = (0, 1) if workers.count() else (1,)
    """The socket may be another process's than the one that is asked."""
    async with node.v2(token=text) as one, node.v2(token=token(client)) as two, node.v2() as other:
        answer = ok(await api.post("/revocations", {"jti": jti}))
        expected: dict[str, Any] = {"revoked_jti": jti, "revoked_client_id": None}
        assert answer.pop("closed_connections") in counted
        assert answer == expected
        await assert_revoked(one)
        await two.quiet()
        await assert_refused(node, text)
        answer = ok(await api.post("/revocations", {"client_id": client}))
        expected = {"revoked_jti": None, "revoked_client_id": client}
        assert answer.pop("closed_connections") in counted
        assert answer == expected
        await assert_revoked(two)
        await other.quiet()
    for wrong in ({}, {"jti": 7}, {"jti": ""}):
        refused(await api.post("/revocations", wrong), 400, "invalid_input")


async def test_expiry(tmp_path: Path) -> None:
    """40142 at `exp`; then the socket is closed, unless it brings a new token in time."""
    async with channels_server(tmp_path, token_grace_seconds=2) as node:
        iat = int(time.time())
        exp = iat + 3  # time enough for both to connect before it
        async with (
            node.v2(token=token("ana", iat=iat, exp=exp)) as late,
            node.v2(token=token("ana", iat=iat, exp=exp)) as prompt,
        ):
            frames = await asyncio.gather(*(peer.receive() for peer in (late, prompt)))
            assert time.time() >= exp - 0.05
            for frame in frames:
                assert frame["event"] == "sockudo:token_expired"
                assert frame["data"] == {"code": 40142, "reason": "expired"}
            short = token("ana", jti="next", exp=int(time.time()) + 2)
            await prompt.send("auth", {"token": short})
            assert (await prompt.expect(":auth_success"))["data"]["jti"] == "next"
            await late.expect_close(4009)
            frame = await prompt.expect(":token_expired")  # the second is told like the first
            assert frame["data"] == {"code": 40142, "reason": "expired"}
            await prompt.send("auth", {"token": token("ana")})
            await prompt.expect(":auth_success")
            await prompt.quiet()


@pytest.mark.inside
async def test_revocations_are_bounded(
    tmp_path: Path, stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So many of an app are in force; those that matter to no token any more are swept."""
    monkeypatch.setattr(revocations, "MAX_REVOKED", 2)
    clock = FakeClock()
    async with channels_server(tmp_path, await stores("revocations"), clock=clock) as node:
        node.api.now = lambda: clock.now_ms() / 1000
        for name in "ab":
            ok(await node.api.post("/revocations", {"jti": name}))
        response = await node.api.post("/revocations", {"jti": "c"})
        assert "secret" in refused(response, 400, "limit_exceeded")
        service, retention = node.surface.service, node.surface.owner.retention
        clock.advance(revocations.REVOKED_MS)
        await retention.tick()
        assert len(await service.store.rows("channels_old_revocations", (2**62, 9))) == 2
        clock.advance(1)
        await retention.tick()
        assert not await service.store.rows("channels_old_revocations", (2**62, 9))
        ok(await node.api.post("/revocations", {"jti": "c"}))
