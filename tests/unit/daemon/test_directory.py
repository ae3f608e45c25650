"""Names of members, asked of the broker."""

import time
from typing import Any

import pytest

from tidelog.daemon.directory import Directory
from tidelog.mesh.identity import MemberKey, verify_token

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


async def test_a_name_is_found_on_any_page() -> None:
    """All pages are read, each with a token of its own."""
    broker = Broker(**{ALICE: "alice", BOB: "bob", "c" * 64: "carol"})
    directory = Directory("http://broker", "harbour", MemberKey.generate(), broker.fetch)
    assert await directory.keys_named("carol") == {"c" * 64}
    tokens = [headers["authorization"].split()[1] for _, headers in broker.requests]
    assert len(set(tokens)) == 2
    assert verify_token(tokens[0], "harbour", time.time()).jti


async def test_the_list_is_believed_for_a_while() -> None:
    """A name that nobody has does not cost a request each time."""
    broker = Broker(**{ALICE: "alice"})
    directory = Directory("http://broker", "harbour", MemberKey.generate(), broker.fetch)
    for _ in range(5):
        assert await directory.keys_named("nobody") == set()
    assert len(broker.requests) == 1


@pytest.mark.parametrize("failure", [OSError("away"), ValueError("no JSON"), KeyError("items")])
async def test_a_broker_that_is_away_is_no_error(failure: Exception) -> None:
    """Nobody is found, and nothing is raised."""
    broker = Broker()
    broker.failure = failure
    directory = Directory("http://broker", "harbour", MemberKey.generate(), broker.fetch)
    assert await directory.keys_named("alice") == set()
