"""Who is called what in a mesh, asked of the broker (mesh 4.1: names are resolved before hashing).

A person writes `dm:bob`; what is sent and hashed is bob's key. The broker's list of members is read
when a name is not known yet, and kept for a while, so that a wrong name does not cost a request
each time somebody repeats it.
"""

import asyncio
import json
import logging
import secrets
import time
import urllib.request
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

from tidelog.daemon.address import resource_url
from tidelog.mesh.fingerprint import PUBLIC_KEY
from tidelog.mesh.identity import MemberKey

TIMEOUT_S = 5.0
"""A caller waits for it with an open request."""

FRESH_S = 30.0
"""How long the list is believed, so also how long a new member is not found by name."""

MAX_PAGES = 100
MAX_MEMBERS = 10_000
MAX_PAGE_BYTES = 4 * 1024**2

_log = logging.getLogger(__name__)

Fetch = Callable[[str, dict[str, str]], Any]


class Directory:
    """The members of one mesh, as the broker listed them last."""

    def __init__(
        self, broker_url: str, slug: str, key: MemberKey, fetch: Fetch | None = None
    ) -> None:
        self._members_url = resource_url(broker_url, slug, "members")
        self._slug = slug
        self._key = key
        self._fetch = fetch or _fetch
        self._members: dict[str, str] = {}
        self._read_at: float | None = None
        self._reading: asyncio.Lock = asyncio.Lock()

    async def keys_named(self, name: str) -> set[str]:
        """Keys of the members of this name; what was known before when the broker is away."""
        members = await self.members()
        return {key for key, known in members.items() if known == name}

    async def members(self) -> dict[str, str]:
        """Name of each member by key; what was known before when the broker is away."""
        async with self._reading:
            if self._read_at is None or time.monotonic() - self._read_at >= FRESH_S:
                await self._refresh()
        return self._members

    async def _refresh(self) -> None:
        self._read_at = time.monotonic()
        try:
            async with asyncio.timeout(TIMEOUT_S):
                self._members = await asyncio.to_thread(self._read)
        except (OSError, ValueError, TypeError, KeyError, TimeoutError) as error:
            _log.warning("the broker's members could not be read: %s", type(error).__name__)

    def _read(self) -> dict[str, str]:
        members: dict[str, str] = {}
        after = ""
        for _ in range(MAX_PAGES):
            page = self._fetch(f"{self._members_url}?after={after}", self._headers())
            for item in page["items"]:
                key, name = item["member_pubkey"], item["name"]
                if PUBLIC_KEY.fullmatch(key) and isinstance(name, str):
                    members[key] = name
            after = quote(str(page["next_after"]), safe="")
            if not page["has_more"] or len(members) >= MAX_MEMBERS:
                break
        return members

    def _headers(self) -> dict[str, str]:
        """A token of its own for every request: the broker takes each once."""
        token = self._key.token(
            self._slug, unix_now=time.time(), jti=secrets.token_hex(16), lifetime_s=60
        )
        return {"authorization": f"Bearer {token}"}


def _fetch(url: str, headers: dict[str, str]) -> Any:
    request = urllib.request.Request(url, headers=headers)  # noqa: S310 - the operator's broker
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:  # noqa: S310 - as above
        return json.loads(answer.read(MAX_PAGE_BYTES))
