"""Hellos and tokens that name where they were dialled (mesh 9.7)."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from support.mesh.peer import Broker, Member, Wire, running_broker, unique
from tidelog.daemon.key_file import new_key
from tidelog.mesh.protocol import wire
from tidelog.mesh.protocol.identity import hello_message


@asynccontextmanager
async def scene(data_dir: Path, **settings: Any) -> AsyncIterator[tuple[Broker, Member]]:
    """A broker with these settings, and a member."""
    async with running_broker(data_dir, str(data_dir / "tidelog.db"), **settings) as broker:
        yield broker, await broker.member(await broker.mesh())


def here(broker: Broker) -> str:
    """Where it is dialled."""
    return broker.url.removeprefix("http://")


async def test_both_versions_are_taken(tmp_path: Path) -> None:
    """The broker says so; an old daemon knows nothing of it and signs as it always did."""
    async with scene(tmp_path) as (broker, ana):
        async with Wire.open(ana) as old:
            assert (await old.greeting())["hello_versions"] == [1, 2]
            assert (await old.hello())["name"] == ana.name
        async with Wire.open(ana) as new:
            assert (await new.hello(host=here(broker)))["name"] == ana.name


@pytest.mark.parametrize(
    ("listed", "dialled", "is_accepted"),
    [
        (["broker.example"], "broker.example:443", True),
        (["broker.example"], "BROKER.example.:443", True),
        (["broker.example"], "broker.example:80", True),
        (["broker.example"], "broker.example:8080", False),
        (["broker.example"], "broker.example", False),
        (["broker.example:8443"], "broker.example:8443", True),
        (["broker.example:8443"], "broker.example:443", False),
        (["broker.example"], "evil.example:443", False),
        (["broker.example"], "broker.example.evil.example:443", False),
        (["broker.example"], "", False),
        (["broker.example"], "https://broker.example:443", False),
        ("a.example, [2001:db8::1]:8080", "[2001:0DB8::0001]:8080", True),
        ("a.example, [2001:db8::1]:8080", "[2001:db8::2]:8080", False),
    ],
)
async def test_listed_hosts(
    tmp_path: Path, listed: list[str] | str, dialled: str, is_accepted: bool
) -> None:
    """One spelling on both sides; a right signature for another address is closed with 4421."""
    async with scene(tmp_path, public_hosts=listed) as (_, ana), Wire.open(ana) as socket:
        await socket.prove(host=dialled)
        if is_accepted:
            assert (await socket.until("welcome"))["name"] == ana.name
        else:
            code, reason = await socket.closing()
            assert code == wire.MISDIRECTED
            assert reason == f"{dialled[:60]} is not in mesh.public_hosts"


async def test_the_host_is_part_of_the_signature(tmp_path: Path) -> None:
    """A relay cannot put another host, or version 1, around what a daemon signed."""
    async with scene(tmp_path) as (broker, ana):
        for frame in (
            {"hello_version": 2, "host": here(broker)},
            {"hello_version": 1, "host": "evil.example:443"},
            {},
            {"hello_version": 3, "host": "evil.example:443"},
        ):
            async with Wire.open(ana) as socket:
                await socket.greeting()
                message = hello_message(ana.slug, socket.challenge, "evil.example:443")
                proof = {"member_pubkey": ana.address, "signature": ana.key.sign(message)}
                await socket.send({"type": "hello", **proof, **frame})
                assert await socket.close_code() == wire.UNAUTHENTICATED


async def test_version_2_can_be_required(tmp_path: Path) -> None:
    """Then nothing that could have been passed on counts, and the refusal names the setting."""
    async with scene(tmp_path, require_hello_2=True) as (broker, ana):
        async with Wire.open(ana) as old:
            assert (await old.greeting())["hello_versions"] == [2]
            await old.prove()
            code, reason = await old.closing()
            assert code == wire.UNAUTHENTICATED
            assert "mesh.require_hello_2" in reason
        async with Wire.open(ana) as new:
            await new.hello(host=here(broker))
        answer = await ana.request("GET", "/topics")
        assert (answer.status_code, answer.json()["error"]) == (401, "unauthenticated")
        assert "mesh.require_hello_2" in answer.json()["detail"]
        answer = await ana.request("GET", "/topics", token=ana.token(host=here(broker)))
        assert answer.status_code == 200


async def test_tokens_name_their_broker(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """One that a hostile broker got for itself opens nothing here, and is not used up by it."""
    async with scene(tmp_path) as (broker, ana):
        assert (await ana.request("GET", "/topics", token=ana.token())).status_code == 200
        token = ana.token(host="evil.example:443")
        with caplog.at_level(logging.WARNING, "tidelog.mesh.front.service"):
            answer = await ana.request("GET", "/topics", token=token)
        assert (answer.status_code, answer.json()["error"]) == (401, "unauthenticated")
        assert "evil.example:443, which is not in mesh.public_hosts" in answer.json()["detail"]
        assert "mesh.public_hosts" in caplog.text
        token = ana.token(host=here(broker).replace("127.0.0.1", "LOCALHOST."))
        assert (await ana.request("GET", "/topics", token=token)).status_code == 200


async def test_the_host_header_means_nothing(tmp_path: Path) -> None:
    """A proxy may rewrite it, and a relay can write what it likes."""
    async with scene(tmp_path, public_hosts="broker.example") as (broker, ana):
        headers = {"host": "elsewhere.example"}
        token = ana.token(host="broker.example:443")
        assert (await ana.request("GET", "/topics", token=token, headers=headers)).is_success
        token = ana.token(host=here(broker))
        headers = {"host": "broker.example"}
        answer = await ana.request("GET", "/topics", token=token, headers=headers)
        assert answer.status_code == 401


async def test_a_stranger_is_told_nothing_of_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A key that is no member's is refused as such, and cannot fill the log with addresses."""
    async with scene(tmp_path) as (broker, ana):
        stranger = Member(broker, ana.slug, new_key(), unique())
        async with Wire.open(stranger) as socket:
            await socket.prove(host="evil.example:443")
            assert await socket.close_code() == wire.NOT_A_MEMBER
        assert "evil.example" not in caplog.text
