"""Connections to receivers: used again when that is safe, bounded, and closed."""

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from support.mesh.webhook_receiver import CLOSE, OK, Receiver, receiving
from tidelog.mesh.front import webhook_client, webhook_connections
from tidelog.mesh.front.webhook_client import PostFailed, WebhookClient


@pytest_asyncio.fixture
async def receiver() -> AsyncIterator[Receiver]:
    """Without TLS."""
    async with receiving() as found:
        yield found


@pytest_asyncio.fixture
async def client() -> AsyncIterator[WebhookClient]:
    """May post to this machine."""
    made = WebhookClient(timeout_s=30, may_be_private=True)
    yield made
    made.close()


async def post(client: WebhookClient, receiver: Receiver, body: bytes = b"x") -> int:
    """One post."""
    return await client.post(receiver.url, {}, body)


@pytest.mark.parametrize(
    "answer",
    [
        OK,
        b"HTTP/1.1 204 No Content\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.1 500 X\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nno\r\n0\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n" + OK,
        b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 70000\r\n\r\n" + b"a" * 70_000,
    ],
)
async def test_an_answer_that_ends_leaves_its_connection(
    client: WebhookClient, receiver: Receiver, answer: bytes
) -> None:
    """Whatever its status is, the next post goes the same way."""
    receiver.answers = [answer]
    for body in (b"1", b"2", b"3"):
        await post(client, receiver, body)
    assert receiver.bodies == [b"1", b"2", b"3"]
    assert receiver.opened == 1


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\nuntil I close",
        b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nunended",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nno chunk",
        b"HTTP/1.1 200 OK\r\nContent-Length: 200000\r\n\r\n" + b"a" * 200_000,
        OK + b"HTTP/1.1 100 Continue\r\n\r\n",
        OK + b"more than was asked for",
        OK + OK,
    ],
)
async def test_any_other_answer_ends_it(
    client: WebhookClient, receiver: Receiver, answer: bytes
) -> None:
    """The status counts; what else is on that connection would be taken for the next answer."""
    receiver.answers = [answer]
    assert await post(client, receiver) == 200
    assert len(client.kept) == 0
    await receiver.has_open(0)
    assert await post(client, receiver) == 200
    assert receiver.opened == 2


async def test_a_receiver_that_closes_after_each_answer(
    client: WebhookClient, receiver: Receiver
) -> None:
    """It does not say so beforehand, and gets everything once."""
    receiver.closes_after_answer = True
    bodies = [b"%d" % number for number in range(30)]
    for body in bodies:
        assert await post(client, receiver, body) == 200
    assert receiver.bodies == bodies
    assert receiver.opened == len(bodies)


async def test_a_kept_connection_that_closes_instead_of_answering(
    client: WebhookClient, receiver: Receiver
) -> None:
    """The post is made once more on a new connection, and only once."""
    receiver.answers = [OK, CLOSE, OK]
    await post(client, receiver, b"1")
    assert await post(client, receiver, b"2") == 200
    assert receiver.bodies == [b"1", b"2", b"2"]
    assert receiver.opened == 2
    receiver.answers = [CLOSE, CLOSE]
    with pytest.raises(PostFailed, match="answer_invalid"):
        await post(client, receiver, b"3")
    assert receiver.bodies[3:] == [b"3", b"3"]
    assert receiver.opened == 3


async def test_a_new_connection_that_closes_is_not_tried_again(
    client: WebhookClient, receiver: Receiver
) -> None:
    """That is an attempt that failed."""
    receiver.answers = [CLOSE]
    with pytest.raises(PostFailed, match="answer_invalid"):
        await post(client, receiver)
    assert receiver.opened == 1


async def test_part_of_an_answer_is_not_tried_again(
    client: WebhookClient, receiver: Receiver
) -> None:
    """The receiver had the post."""
    await post(client, receiver)
    receiver.answers = [b"HTTP/1.1 20"]
    receiver.closes_after_answer = True
    with pytest.raises(PostFailed):
        await post(client, receiver)
    assert receiver.opened == 1
    assert len(client.kept) == 0


async def test_a_post_without_an_answer_ends_its_connection(receiver: Receiver) -> None:
    """Its answer may still come, and is not the next post's."""
    client = WebhookClient(timeout_s=0.2, may_be_private=True)
    receiver.answers = [b"HTTP/1.1 100 Continue\r\n\r\n"]
    with pytest.raises(PostFailed, match="timeout"):
        await post(client, receiver)
    await receiver.has_open(0)
    assert len(client.kept) == 0


async def test_bytes_that_nobody_asked_for(client: WebhookClient, receiver: Receiver) -> None:
    """An answer that comes before its request would be taken for that of the next message."""
    await post(client, receiver)
    [writer] = receiver.writers
    writer.write(b"HTTP/1.1 410 Gone\r\nContent-Length: 0\r\n\r\n")
    await receiver.has_open(0)
    assert await post(client, receiver) == 200
    assert receiver.opened == 2


async def test_idle_connections_are_closed(
    client: WebhookClient, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a while without a post."""
    monkeypatch.setattr(webhook_connections, "IDLE_SECONDS", 0.05)
    await post(client, receiver)
    await receiver.has_open(0)
    assert len(client.kept) == 0


async def test_old_connections_are_closed(
    client: WebhookClient, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However busy they are."""
    monkeypatch.setattr(webhook_connections, "MAX_AGE_SECONDS", 0)
    await post(client, receiver)
    assert len(client.kept) == 0
    await receiver.has_open(0)


async def test_bounds(
    client: WebhookClient, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So many are kept of one receiver, and so many together."""
    monkeypatch.setattr(webhook_connections, "MAX_IDLE_OF_ORIGIN", 2)
    monkeypatch.setattr(webhook_connections, "MAX_IDLE", 3)
    async with receiving() as other:
        await asyncio.gather(*(post(client, receiver) for _ in range(6)))
        await receiver.has_open(2)
        assert len(client.kept) == 2
        await asyncio.gather(*(post(client, other) for _ in range(6)))
        await other.has_open(2)
        await receiver.has_open(1)
        assert len(client.kept) == 3


async def test_all_are_closed_in_the_end(client: WebhookClient, receiver: Receiver) -> None:
    """None is kept after that either."""
    await asyncio.gather(*(post(client, receiver) for _ in range(3)))
    client.close()
    await receiver.has_open(0)
    await post(client, receiver)
    await receiver.has_open(0)
    assert len(client.kept) == 0


async def test_every_new_connection_is_checked(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host that was public and is not now is reached only where it was public."""
    client = WebhookClient(timeout_s=30, may_be_private=False)
    with monkeypatch.context() as public:
        public.setattr(webhook_client, "is_public", lambda _: True)
        await post(client, receiver)
    receiver.answers = [CLOSE]
    with pytest.raises(PostFailed, match="target_not_allowed"):
        await post(client, receiver)
    assert receiver.opened == 1
