"""Who is called what in a mesh, asked of the broker (mesh D3: names are resolved before hashing).

A person writes `dm:bob`; what is sent and hashed is bob's key. The broker is asked for it at every
send, because bob may have joined again under another key; sends that come while it is being asked
share the answer. Only when it is away does what is kept on the disk count.
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

from tidelog.base.net import direct
from tidelog.daemon.uplink.broker_address import resource_url
from tidelog.daemon.uplink.interface import BrokerUnreachable
from tidelog.daemon.uplink.names_db import Names
from tidelog.mesh.protocol.fingerprint import PUBLIC_KEY
from tidelog.mesh.protocol.identity import MemberKey

TIMEOUT_S = 5.0
"""A caller waits for it with an open request."""

FRESH_S = 30.0
"""How long the list of all members is believed."""

MAX_NAME_BYTES = 128
"""No member has a longer name."""

MAX_PAGES = 100
MAX_MEMBERS = 10_000
MAX_PAGE_BYTES = 4 * 1024**2

_log = logging.getLogger(__name__)

Fetch = Callable[[str, dict[str, str]], Any]

_FAILURES = (OSError, ValueError, TypeError, KeyError, TimeoutError)
"""How asking fails if the broker is away, or if it is something else."""


class MemberDirectory:
    """The members of one mesh, as the broker names them."""

    def __init__(
        self,
        broker_url: str,
        slug: str,
        key: MemberKey,
        names: Names,
        *,
        host: str | None = None,
        is_away: Callable[[], bool] = lambda: False,
        fetch: Fetch | None = None,
    ) -> None:
        """Know where to ask.

        Args:
            broker_url: where the broker serves HTTP.
            slug: name of the mesh.
            key: proves who asks.
            names: what was said before.
            host: what tokens name as dialled, if they do (mesh 9.7).
            is_away: whether the broker is known not to answer; a name that is kept costs no wait
                then.
            fetch: asks one URL.
        """
        self._members_url = resource_url(broker_url, slug, "members")
        self._slug = slug
        self._key = key
        self._names = names
        self._host = host
        self._is_away = is_away
        self._fetch = fetch or _fetch
        self._members: dict[str, str] = {}
        self._read_at: float | None = None
        self._reading = asyncio.Lock()
        self._asking: dict[str, asyncio.Task[set[str]]] = {}
        """Names the broker is being asked for."""

    async def key_of(self, name: str) -> str | None:
        """The key of the one member of this name; what was known before if the broker is away."""
        if not name or len(name.encode()) > MAX_NAME_BYTES:
            return None
        kept = self._names.key_of(name)
        if kept is not None and self._is_away():
            return kept
        try:
            keys = await self._keys_named(name)
        except _FAILURES as error:
            _log.warning("the broker was not asked for a name: %s", type(error).__name__)
            return kept
        if len(keys) != 1:
            self._names.forget(name)
            return None
        [key] = keys
        self._names.note({name: key})
        return key

    async def _keys_named(self, name: str) -> set[str]:
        """Ask the broker; who asks while that is under way gets the same answer."""
        asking = self._asking.get(name)
        if asking is None:
            asking = asyncio.create_task(self._ask(name))
            self._asking[name] = asking
            asking.add_done_callback(lambda asked: self._asked(name, asked))
        return await asyncio.shield(asking)

    def _asked(self, name: str, asking: "asyncio.Task[set[str]]") -> None:
        del self._asking[name]
        if not asking.cancelled():
            asking.exception()  # whoever asked may be gone

    async def _ask(self, name: str) -> set[str]:
        async with asyncio.timeout(TIMEOUT_S):
            members = await asyncio.to_thread(self._read, name)
        return {key for key, known in members.items() if known == name}

    async def members(self) -> dict[str, str]:
        """Name of each member by key.

        Raises:
            BrokerUnreachable: they could not be read.
        """
        async with self._reading:
            if self._read_at is None or time.monotonic() - self._read_at >= FRESH_S:
                try:
                    async with asyncio.timeout(TIMEOUT_S):
                        self._members = await asyncio.to_thread(self._read)
                except _FAILURES as error:
                    raise BrokerUnreachable(
                        f"the broker did not list the members ({type(error).__name__})"
                    ) from error
                self._read_at = time.monotonic()
                self._names.note({name: key for key, name in self._members.items()})
        return self._members

    def _read(self, name: str | None = None) -> dict[str, str]:
        """All members, or the one of a name; a broker that knows no names lists all of them."""
        members: dict[str, str] = {}
        wanted = "" if name is None else f"name={quote(name, safe='')}&"
        after = ""
        for _ in range(MAX_PAGES):
            page = self._fetch(f"{self._members_url}?{wanted}after={after}", self._headers())
            for item in page["items"]:
                key, known = item["member_pubkey"], item["name"]
                if PUBLIC_KEY.fullmatch(key) and isinstance(known, str):
                    members[key] = known
            after = quote(str(page["next_after"]), safe="")
            if not page["has_more"] or len(members) >= MAX_MEMBERS:
                break
        return members

    def _headers(self) -> dict[str, str]:
        """A token of its own for every request: the broker takes each once."""
        token = self._key.token(
            self._slug,
            unix_now=time.time(),
            jti=secrets.token_hex(16),
            lifetime_s=60,
            host=self._host,
        )
        return {"authorization": f"Bearer {token}"}


def _fetch(url: str, headers: dict[str, str]) -> Any:
    request = urllib.request.Request(url, headers=headers)  # noqa: S310 - the operator's broker
    with direct.opened(request, TIMEOUT_S) as answer:
        return json.loads(answer.read(MAX_PAGE_BYTES))
