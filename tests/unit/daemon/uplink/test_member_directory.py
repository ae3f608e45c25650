"""Names of members, asked of the broker."""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tidelog.daemon.key_file import new_key
from tidelog.daemon.uplink.interface import BrokerUnreachable
from tidelog.daemon.uplink.member_directory import MemberDirectory
from tidelog.daemon.uplink.names_db import Names
from tidelog.mesh.protocol.identity import verify_token

ALICE, BOB = "a" * 64, "b" * 64


class Broker:
    """Lists members, two to a page."""

    def __init__(self, **names: str) -> None:
        self.names = names
        self.requests: list[tuple[str, dict[str, str]]] = []
        self.failure: Exception | None = None

    def fetch(self, url: str, headers: dict[str, str]) -> Any:
        """One page."""
        self.requests.append((url, headers))
        if self.failure is not None:
            raise self.failure
        after = url.rpartition("=")[2]
        rest = sorted((key, name) for key, name in self.names.items() if key > after)
        items = [{"member_pubkey": key, "name": name} for key, name in rest[:2]]
        last = items[-1]["member_pubkey"] if items else after
        return {"items": items, "next_after": last, "has_more": len(rest) > 2}


@pytest.fixture
def names(tmp_path: Path) -> Iterator[Names]:
    """Nothing is kept yet."""
    opened = Names(tmp_path / "names.db")
    yield opened
    opened.close()


def directory_of(broker: Broker, names: Names, *, is_away: bool = False) -> MemberDirectory:
    """A directory that asks this broker."""
    key = new_key()
    return MemberDirectory(
        "http://broker", "harbour", key, names, is_away=lambda: is_away, fetch=broker.fetch
    )


async def test_a_name_is_found_on_any_page(names: Names) -> None:
    """Of a broker that looks no name up all pages are read, each with a token of its own."""
    broker = Broker(**{ALICE: "alice", BOB: "bob", "c" * 64: "carol"})
    directory = directory_of(broker, names)
    assert await directory.key_of("carol") == "c" * 64
    tokens = [headers["authorization"].split()[1] for _, headers in broker.requests]
    assert len(set(tokens)) == 2
    assert verify_token(tokens[0], "harbour", time.time()).jti


async def test_the_broker_is_asked_for_one_name(names: Names) -> None:
    """Whatever characters it has; a name that no member can have is not asked for."""
    broker = Broker()
    directory = directory_of(broker, names)
    assert await directory.key_of("Gr\u00fc\u00dfe & more") is None
    assert "members?name=Gr%C3%BC%C3%9Fe%20%26%20more&after=" in broker.requests[0][0]
    assert await directory.key_of("x" * 129) is None
    assert await directory.key_of("") is None
    assert len(broker.requests) == 1


async def test_no_answer_is_remembered(names: Names) -> None:
    """Each look-up asks: a member may join, or join again, at any time."""
    broker = Broker(**{ALICE: "alice"})
    directory = directory_of(broker, names)
    assert await directory.key_of("bob") is None
    broker.failure = OSError("away")
    assert await directory.key_of("bob") is None
    broker.failure = None
    broker.names = {BOB: "bob"}
    assert await directory.key_of("bob") == BOB
    broker.names = {ALICE: "bob"}
    assert await directory.key_of("bob") == ALICE
    broker.names = {}
    assert await directory.key_of("bob") is None
    broker.failure = OSError("away")
    assert await directory.key_of("bob") is None, "the broker said that nobody has this name"


async def test_sends_that_come_together_share_an_answer(names: Names) -> None:
    """A burst to one name costs one question."""
    broker = Broker(**{BOB: "bob"})
    directory = directory_of(broker, names)
    found = await asyncio.gather(*(directory.key_of("bob") for _ in range(20)))
    assert (set(found), len(broker.requests)) == ({BOB}, 1)


@pytest.mark.parametrize("failure", [OSError("away"), ValueError("no JSON"), KeyError("items")])
async def test_when_the_broker_is_away_what_is_kept_counts(
    failure: Exception, names: Names
) -> None:
    """Nothing is raised; a broker known to be away is not asked for what is kept."""
    broker = Broker(**{ALICE: "alice"})
    directory = directory_of(broker, names)
    assert await directory.key_of("alice") == ALICE
    broker.failure = failure
    assert await directory.key_of("alice") == ALICE
    assert await directory.key_of("bob") is None
    asked = len(broker.requests)
    assert await directory_of(broker, names, is_away=True).key_of("alice") == ALICE
    assert len(broker.requests) == asked


async def test_the_list_is_believed_for_a_while_and_kept(names: Names) -> None:
    """A list that could not be read is asked for again at once."""
    broker = Broker(**{ALICE: "alice", BOB: "bob"})
    directory = directory_of(broker, names)
    broker.failure = OSError("away")
    with pytest.raises(BrokerUnreachable):
        await directory.members()
    broker.failure = None
    for _ in range(5):
        assert await directory.members() == {ALICE: "alice", BOB: "bob"}
    assert len(broker.requests) == 2
    assert (names.key_of("alice"), names.key_of("bob")) == (ALICE, BOB)
