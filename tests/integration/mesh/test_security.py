"""The broker against strangers: a real process on either engine, its store and its log.

Each attack is refused as mesh 9 says, leaves every stored relation as it was, and nothing secret
in the log.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import pytest_asyncio

from support import other_user
from support.mesh.peer import ADMIN_TOKEN, BrokerAt, Member, Wire, envelope, unique
from tidelog.daemon.key_file import new_key
from tidelog.testing.process import ServerProcess

pytestmark = pytest.mark.asyncio(loop_scope="module")

RELATIONS = (
    *("client_message_dedupe", "message_history", "topic_message", "message_queue"),
    *("delivery_queue", "mention_index", "message_tombstone"),
    *("mesh", "member", "topic", "topic_subscription"),
)
BODY = "the harbour master's secret"
WAIT_SECONDS = 60.0


class Scene:
    """A mesh of Ana and Ben with one message; Eve is of another mesh, Rex is revoked."""

    def __init__(self, process: ServerProcess, broker: BrokerAt) -> None:
        self.process = process
        self.broker = broker
        self.secrets: set[str] = {ADMIN_TOKEN, BODY}
        """What must not be in the log."""

    async def prepare(self) -> None:
        """Make everybody."""
        broker = self.broker
        self.slug, self.elsewhere = await broker.mesh(), await broker.mesh()
        self.ana = await broker.member(self.slug, "ana")
        self.ben = await broker.member(self.slug, "ben")
        self.rex = await broker.member(self.slug, "rex")
        self.eve = await broker.member(self.elsewhere, "eve")
        for member in (self.ana, self.ben, self.rex, self.eve):
            await member.topic("alerts")
            self.secrets.add(member.key.seed.hex())
        await broker.admin("DELETE", f"/mesh/{self.slug}/members/{self.rex.address}")
        assert (await self.ana.post(unique(), envelope(body=BODY))).status_code == 201

    async def stored(self) -> dict[str, list[Any]]:
        """Every relation of the contract, and the invites."""
        found = {}
        for relation in RELATIONS:
            found[relation] = sorted(
                map(repr, await self.broker.rows("SELECT * FROM {}", relation))
            )
        invites = await self.broker.database.run("SELECT * FROM mesh_invite")
        return {**found, "invite": sorted(map(repr, invites))}

    def token(self, member: Member, **more: Any) -> str:
        """A token of a member, which is a secret."""
        token = member.token(**more)
        self.secrets.add(token)
        return token

    async def post(self, member: Member, token: str | None = None, **more: Any) -> tuple[int, str]:
        """Status and error of a send to the mesh."""
        given = token or self.token(member)
        answer = await member.post(unique(), envelope(body=BODY), token=given, **more)
        return answer.status_code, answer.json().get("error", "")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def scene(
    broker_location: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Scene]:
    """A process that is impatient and talkative."""
    environment = {
        "TIDELOG_ADMIN_TOKEN": ADMIN_TOKEN,
        "TIDELOG_LOG_LEVEL": "debug",
        "TIDELOG_MESH_HELLO_TIMEOUT_MS": "1500",
        "TIDELOG_LIMITS_HEADER_TIMEOUT_MS": "1500",
        "TIDELOG_LIMITS_IDLE_TIMEOUT_MS": "2000",
    }
    with ServerProcess(
        data_dir=tmp_path_factory.mktemp("server"), store=broker_location, environment=environment
    ) as process:
        process.start()
        broker = BrokerAt(process.url, broker_location)
        async with broker.http, broker.database:
            scene = Scene(process, broker)
            await scene.prepare()
            yield scene


# Over HTTP: each answers status and error.


async def no_token(scene: Scene) -> tuple[int, str]:
    """Nobody says who asks."""
    answer = await scene.broker.http.post(
        f"/mesh/{scene.slug}/messages",
        json=envelope(body=BODY),
        headers={"idempotency-key": unique()},
    )
    return answer.status_code, answer.json()["error"]


async def token_in_the_query(scene: Scene) -> tuple[int, str]:
    """A right token where it does not belong."""
    answer = await scene.broker.http.post(
        f"/mesh/{scene.slug}/messages?token={scene.token(scene.ana)}",
        json=envelope(body=BODY),
        headers={"idempotency-key": unique()},
    )
    return answer.status_code, answer.json()["error"]


async def admin_token_of_a_member(scene: Scene) -> tuple[int, str]:
    """The administrator is no member."""
    return await scene.post(scene.ana, ADMIN_TOKEN)


async def member_token_of_an_admin(scene: Scene) -> tuple[int, str]:
    """A member is no administrator."""
    answer = await scene.ana.request("POST", "/invites", {}, token=scene.token(scene.ana))
    return answer.status_code, answer.json()["error"]


async def token_of_another_key(scene: Scene) -> tuple[int, str]:
    """Ana's claims under Eve's signature."""
    head, claims, _ = scene.token(scene.ana).split(".")
    signature = scene.token(scene.eve).split(".")[2]
    return await scene.post(scene.ana, f"{head}.{claims}.{signature}")


async def expired_token(scene: Scene) -> tuple[int, str]:
    """One of long ago."""
    return await scene.post(scene.ana, scene.token(scene.ana, unix_now=1_000_000_000))


async def replayed_token(scene: Scene) -> tuple[int, str]:
    """One that was used."""
    token = scene.token(scene.ana)
    assert (await scene.ana.request("GET", "/topics", token=token)).status_code == 200
    return await scene.post(scene.ana, token)


async def revoked_member(scene: Scene) -> tuple[int, str]:
    """A right token of a key that is no member's any more."""
    return await scene.post(scene.rex)


async def token_for_another_mesh(scene: Scene) -> tuple[int, str]:
    """A right token of another mesh."""
    return await scene.post(scene.eve, slug=scene.slug)


async def member_of_another_mesh(scene: Scene) -> tuple[int, str]:
    """A token for this mesh by a key of another one."""
    stranger = Member(scene.broker, scene.slug, scene.eve.key, "eve")
    return await scene.post(stranger)


async def foreign_invite(scene: Scene) -> tuple[int, str]:
    """An invite that opens another mesh."""
    invited = await scene.broker.admin("POST", f"/mesh/{scene.elsewhere}/invites")
    invite = invited.json()["invite"]
    scene.secrets.add(invite)
    late = Member(scene.broker, scene.slug, new_key(), unique("late"))
    answer = await late.join(invite)
    return answer.status_code, answer.json()["error"]


async def too_large_a_message(scene: Scene) -> tuple[int, str]:
    """A byte more than a message may have."""
    answer = await scene.ana.post(unique(), envelope(body="x" * 65_537))
    return answer.status_code, answer.json()["error"]


async def too_large_a_body(scene: Scene) -> tuple[int, str]:
    """More than a request may have."""
    answer = await scene.ana.post(unique(), b" " * 500_000)
    return answer.status_code, answer.json()["error"]


async def slow(scene: Scene, sent: bytes) -> int:
    """The status that ends a request which does not go on."""
    place = urlsplit(scene.broker.url)
    reader, writer = await asyncio.open_connection(place.hostname, place.port)
    try:
        writer.write(sent)
        async with asyncio.timeout(WAIT_SECONDS):
            return int((await reader.readline()).split()[1])
    finally:
        writer.close()


async def slow_head(scene: Scene) -> tuple[int, str]:
    """Headers that do not end."""
    return await slow(scene, b"POST /mesh/x/messages HTTP/1.1\r\nhost: x\r\n"), ""


async def slow_body(scene: Scene) -> tuple[int, str]:
    """A body that does not come."""
    token = scene.token(scene.ana)
    head = f"POST /mesh/{scene.slug}/messages HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}"
    head += "\r\nidempotency-key: slow\r\ncontent-length: 1000\r\n\r\n{"
    return await slow(scene, head.encode()), ""


Attack = Callable[[Scene], Awaitable[tuple[int, str]]]

OVER_HTTP: dict[Attack, tuple[int, str]] = {
    no_token: (401, "unauthenticated"),
    token_in_the_query: (401, "unauthenticated"),
    admin_token_of_a_member: (401, "unauthenticated"),
    token_of_another_key: (401, "unauthenticated"),
    expired_token: (401, "unauthenticated"),
    replayed_token: (401, "unauthenticated"),
    member_token_of_an_admin: (401, "unauthenticated"),
    token_for_another_mesh: (401, "unauthenticated"),
    member_of_another_mesh: (403, "not_a_member"),
    revoked_member: (403, "not_a_member"),
    too_large_a_message: (413, "payload_too_large"),
    too_large_a_body: (413, "payload_too_large"),
    slow_head: (408, ""),
    slow_body: (408, ""),
}


def name_of(attack: Callable[..., object]) -> str:
    """Under which a test is listed."""
    return attack.__name__


@pytest.mark.parametrize("attack", OVER_HTTP, ids=name_of)
async def test_over_http(scene: Scene, attack: Attack) -> None:
    """Refused as specified, and nothing is stored."""
    before = await scene.stored()
    assert await attack(scene) == OVER_HTTP[attack]
    assert await scene.stored() == before


async def test_an_invite_of_another_mesh(scene: Scene) -> None:
    """It opens no other door, and stays unused."""
    assert await foreign_invite(scene) == (403, "invite_invalid")
    members = await scene.broker.rows("SELECT name FROM {}", "member")
    assert sorted(members) == [("ana",), ("ben",), ("eve",), ("rex",)]
    used = await scene.broker.database.run(
        "SELECT count(*) FROM mesh_invite WHERE used_at IS NOT NULL"
    )
    [(made,)] = await scene.broker.database.run("SELECT count(*) FROM mesh_invite")
    assert used == [(made - 1,)]


# Over WebSocket: each answers the close code.


async def no_hello(scene: Scene) -> int:
    """A connection that says nothing."""
    async with Wire.open(scene.ana) as wire:
        return await wire.close_code()


async def replayed_hello(scene: Scene) -> int:
    """A signature overheard on an earlier connection."""
    async with Wire.open(scene.ana) as wire:
        await wire.hello()
        overheard = scene.ana.key.sign_hello(scene.slug, wire.challenge)
    scene.secrets.add(overheard)
    return await hello(scene.ana, overheard)


async def hello(member: Member, signature: str | None) -> int:
    """The close code after a hello."""
    async with Wire.open(member) as wire:
        await wire.greeting()
        signed = signature or member.key.sign_hello(member.slug, wire.challenge)
        await wire.send({"type": "hello", "member_pubkey": member.address, "signature": signed})
        return await wire.close_code()


async def second_hello(scene: Scene) -> int:
    """A challenge that is answered twice."""
    async with Wire.open(scene.ana) as wire:
        await wire.hello()
        signed = scene.ana.key.sign_hello(scene.slug, wire.challenge)
        await wire.send({"type": "hello", "member_pubkey": scene.ana.address, "signature": signed})
        return await wire.close_code()


async def hello_of_the_revoked(scene: Scene) -> int:
    """A right signature of a key that is no member's any more."""
    return await hello(scene.rex, None)


async def hello_of_a_stranger(scene: Scene) -> int:
    """A right signature of a key of another mesh."""
    return await hello(Member(scene.broker, scene.slug, scene.eve.key, "eve"), None)


async def hello_to_no_mesh(scene: Scene) -> int:
    """A mesh that there is not."""
    async with Wire.open(scene.ana, "nowhere") as wire:
        return await wire.close_code()


async def send_before_hello(scene: Scene) -> int:
    """A send by nobody."""
    async with Wire.open(scene.ana) as wire:
        await wire.send(
            {"type": "send", "ref": 1, "client_message_id": unique(), **envelope(body=BODY)}
        )
        return await wire.close_code()


async def too_large_a_frame(scene: Scene) -> int:
    """More than a frame may have."""
    async with scene.ana.connected() as wire:
        await wire.send({"type": "send", "ref": 1, **envelope(body="x" * 500_000)})
        return await wire.close_code()


async def no_json(scene: Scene) -> int:
    """A frame that is none."""
    async with scene.ana.connected() as wire:
        await wire.send("{" + BODY)
        return await wire.close_code()


OVER_WEBSOCKET: dict[Callable[[Scene], Awaitable[int]], int] = {
    no_hello: 4401,
    replayed_hello: 4401,
    second_hello: 4401,
    send_before_hello: 4401,
    hello_of_the_revoked: 4403,
    hello_of_a_stranger: 4403,
    hello_to_no_mesh: 4404,
    too_large_a_frame: 4400,
    no_json: 4400,
}


@pytest.mark.parametrize("attack", OVER_WEBSOCKET, ids=name_of)
async def test_over_websocket(scene: Scene, attack: Callable[[Scene], Awaitable[int]]) -> None:
    """Closed with the code of the contract, and nothing is stored."""
    before = await scene.stored()
    assert await attack(scene) == OVER_WEBSOCKET[attack]
    assert await scene.stored() == before


async def test_another_user_reaches_no_file(scene: Scene) -> None:
    """The store holds messages and secrets of webhooks; on PostgreSQL there is no file."""
    if not scene.broker.database.is_sqlite:
        assert list(scene.process.data_dir.glob("*.db*")) == []
        return
    path = Path(scene.broker.database.location)
    files = [file for end in ("", "-wal", "-shm") if (file := Path(f"{path}{end}")).exists()]
    path.parent.chmod(0o755)
    assert len(files) == 3
    assert other_user.reachable(files) == []


async def test_the_log_keeps_secrets(scene: Scene) -> None:
    """After all of that, at the most talkative level: no token, key, invite, signature or body."""
    hook = {"url": "http://127.0.0.1:1/hook", "secret": "a webhook's own secret"}
    made = await scene.broker.admin("POST", f"/mesh/{scene.slug}/webhooks", hook)
    assert made.status_code == 201
    scene.secrets.add(hook["secret"])
    assert await scene.post(scene.ana) == (201, "")
    for attack in (*OVER_HTTP, *OVER_WEBSOCKET, foreign_invite):
        await attack(scene)
    async with scene.ana.connected() as wire:  # what is logged of a daemon, to be found below
        failure = {"kind": "feature_unavailable", "feature": "tides", "detail": "none"}
        await wire.send({"type": "feature_negotiation_failed", **failure})
        assert (await wire.ask("topics"))["code"] == 200
    log = scene.process.log_text()
    assert "'feature_unavailable' 'tides'" in log
    assert len(scene.secrets) > 10
    assert [secret for secret in scene.secrets if secret in log] == []
