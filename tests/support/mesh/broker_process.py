"""The real broker as a process, with a mesh that real daemons are members of."""

import asyncio
import json
import secrets
import sqlite3
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, Self, TypeVar

import asyncpg

from support.mesh.daemon_process import DaemonProcess
from support.mesh.scripted_broker import SLUG
from tidelog.base.clock import TEST_OFFSET_VARIABLE
from tidelog.config.schema import SCHEMA
from tidelog.daemon.key_file import new_key
from tidelog.mesh.protocol.identity import MemberKey
from tidelog.mesh.upkeep.orphan_check import Finding, find_orphans
from tidelog.store import open_store
from tidelog.store.backup import back_up, restore
from tidelog.testing.process import ServerProcess

ADMIN_TOKEN = "harbour-lights-at-dusk-41"
TOPIC = "tides"
LEASE_MS = 1000
"""Of a delivery; short, because tests wait for it to end."""
REAPER_MS = 200
"""Between two looks for leases that have ended."""
READ_SECONDS = 0.2
"""Between two looks of the history's reader."""

Json = dict[str, Any]
T = TypeVar("T")


class RealMesh:
    """`tidelog serve` on either engine, a mesh and a topic."""

    def __init__(
        self,
        data_dir: Path,
        store: str | None = None,
        *,
        environment: dict[str, str] | None = None,
        faults: str = "",
        **settings: Any,
    ) -> None:
        """Prepare; entering the block starts the broker.

        Args:
            data_dir: of the broker.
            store: path or URL of its store; `tidelog.db` in `data_dir` if none is given.
            environment: more variables of the broker.
            faults: fault points armed at the first start.
            settings: of the mesh, as `POST /mesh` takes them.
        """
        self.location = store or str(data_dir / "tidelog.db")
        self.is_sqlite = not self.location.startswith("postgresql://")
        self._settings = settings
        self._faults = faults
        self.token_host: str | None = None
        """What the tokens of its members name as dialled, if they do."""
        self._clock_file = data_dir / "clock_offset"
        self._environment = {
            "TIDELOG_ADMIN_TOKEN": ADMIN_TOKEN,
            "TIDELOG_MESH_LEASE_MS": str(LEASE_MS),
            "TIDELOG_MESH_REAPER_INTERVAL_MS": str(REAPER_MS),
            TEST_OFFSET_VARIABLE: str(self._clock_file),
            **(environment or {}),
        }
        self.server = self._server(data_dir)
        self.shift_clock(0)
        self._beside: list[ServerProcess] = []
        self.readers: dict[str, HistoryReader] = {}
        """By mesh; each reads the history as the first member, from its joining on."""
        self.accepted: list[Json] = []
        """Every 201 and 200 that callers without a daemon got, for the check of the invariants."""

    def _server(self, data_dir: Path, environment: dict[str, str] | None = None) -> ServerProcess:
        variables = {**self._environment, **(environment or {})}
        return ServerProcess(data_dir=data_dir, store=self.location, environment=variables)

    def __enter__(self) -> Self:
        self.server.start(self._faults)
        self.create(SLUG, **self._settings)
        return self

    def __exit__(self, *_: object) -> None:
        for reader in self.readers.values():
            reader.stop()
        for server in (self.server, *self._beside):
            server.__exit__(None, None, None)

    def beside(self) -> list[str]:
        """URLs of all nodes: on PostgreSQL a second one is started, on SQLite there is one."""
        if not self.is_sqlite and not self._beside:
            self.node("beside").start()
        return [server.url for server in (self.server, *self._beside)]

    def node(self, name: str, environment: dict[str, str] | None = None) -> ServerProcess:
        """Another node on the same PostgreSQL; it is not started."""
        self._beside.append(self._server(self.server.data_dir.with_name(name), environment))
        return self._beside[-1]

    def log_text(self) -> str:
        """What all nodes have logged."""
        return "".join(server.log_text() for server in (self.server, *self._beside))

    def shift_clock(self, hours: float) -> None:
        """Set how far the broker's wall clock is from the true one."""
        self._offset_ms = int(hours * 3_600_000)
        fresh = self._clock_file.with_suffix(".new")
        fresh.write_text(str(self._offset_ms))
        fresh.replace(self._clock_file)

    def now_ms(self) -> int:
        """The broker's time, unless its clock was set back since it started."""
        return time.time_ns() // 1_000_000 + self._offset_ms

    # Members.

    def create(self, slug: str, **settings: Any) -> None:
        """A mesh."""
        self.call("POST", "/mesh", {"slug": slug, **settings})

    def member(self, name: str, slug: str = SLUG, *, is_followed: bool = True) -> MemberKey:
        """The key of a new member that is subscribed to the topic.

        The first one of a mesh is also its reader of the history, unless nobody shall follow it.
        """
        key = new_key()
        invite = self.call("POST", f"/mesh/{slug}/invites", {})["invite"]
        request = {
            "invite": invite,
            "member_pubkey": key.public_hex,
            "name": name,
            "signature": key.sign_join(slug, invite, name),
        }
        self.call("POST", f"/mesh/{slug}/members", request)
        self.as_member(key, "POST", f"/mesh/{slug}/topics", {"topic": TOPIC}, slug)
        self.as_member(key, "PUT", f"/mesh/{slug}/topics/{TOPIC}/subscription", {}, slug)
        if is_followed and slug not in self.readers:
            self.readers[slug] = HistoryReader(self, key, slug)
        return key

    def daemon(
        self, name: str, *, slug: str = SLUG, settings: str = "", broker_url: str | None = None
    ) -> DaemonProcess:
        """A daemon whose key is a member's; it is not started.

        Before a proxy, whose address the broker was not told, it has to be told to sign none.
        """
        key = self.member(name, slug)
        url = broker_url or self.server.url
        version = None if broker_url is None else 1
        return DaemonProcess(url, slug=slug, settings=settings, key=key, hello_version=version)

    def as_member(
        self, key: MemberKey, method: str, path: str, body: object = None, slug: str = SLUG
    ) -> Any:
        """One request with a member's token."""
        now, jti = self.now_ms() / 1000, secrets.token_hex(8)
        token = key.token(slug, unix_now=now, jti=jti, host=self.token_host)
        return self.call(method, path, body, token)

    def call(self, method: str, path: str, body: object, token: str = ADMIN_TOKEN) -> Any:
        """One HTTP request."""
        request = urllib.request.Request(
            self.server.url + path,
            data=None if body is None else json.dumps(body).encode(),
            headers={"authorization": f"Bearer {token}"},
            method=method,
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)

    # Backups.

    def back_up(self, target: Path) -> None:
        """`tidelog backup`, beside the running broker."""
        _result(back_up(SCHEMA, self.location, target, _silent))

    def restore(self, source: Path) -> None:
        """Kill the broker, put a backup in the place of its log, and start it again."""
        self.server.kill()
        if self.is_sqlite:
            for suffix in ("", "-wal", "-shm"):
                Path(self.location + suffix).unlink(missing_ok=True)
        else:
            _result(self._ask_server("DROP SCHEMA tidelog, mesh CASCADE"))
        _result(restore(SCHEMA, source, self.location, _silent))
        self.server.start()

    # What is stored.

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """Ask the store itself; `{name}` in the query is a relation of the contract."""
        text = query.format_map(_Relations("mesh_" if self.is_sqlite else "mesh."))
        if not self.is_sqlite:
            return _result(self._ask_server(text))
        # Read-only: the last connection to close must not fold a dead broker's WAL into the file.
        connection = sqlite3.connect(f"file:{self.location}?mode=ro", uri=True, timeout=10)
        try:
            return connection.execute(text).fetchall()
        finally:
            connection.close()

    async def _ask_server(self, query: str) -> list[tuple[Any, ...]]:
        path = {"search_path": "tidelog, public"}
        connection = await asyncpg.connect(self.location, server_settings=path)
        try:
            return [tuple(record) for record in await connection.fetch(query)]
        finally:
            await connection.close()

    def ids(self) -> dict[str, str]:
        """`broker_message_id` of every accepted id."""
        return dict(
            self.rows("SELECT client_message_id, broker_message_id FROM {client_message_dedupe}")
        )

    def messages(self) -> Counter[str]:
        """Stored messages by client id."""
        found = self.rows(
            "SELECT client_message_id FROM {topic_message}"
            " UNION ALL SELECT client_message_id FROM {message_queue}"
        )
        return Counter(row[0] for row in found)

    def undelivered(self) -> int:
        """Deliveries that no receiver has acknowledged."""
        [(count,)] = self.rows("SELECT count(*) FROM {delivery_queue} WHERE status <> 'delivered'")
        return int(count)

    def used_units(self, slug: str = SLUG) -> int | None:
        """What the limiter has counted, all windows together; None where it is in memory."""
        if self.is_sqlite:
            return None
        [(used,)] = self.rows(
            "SELECT coalesce(sum(used), 0) FROM mesh.rate_limit_window"
            f" WHERE mesh_id = (SELECT id::text FROM mesh.mesh WHERE slug = '{slug}')"
        )
        return int(used)

    def findings(self) -> list[Finding]:
        """What `tidelog mesh check` finds."""
        return _result(self._findings())

    async def _findings(self) -> list[Finding]:
        store = await open_store(SCHEMA, self.location, log_id="", node="", read_only=True)
        try:
            return [finding async for finding in find_orphans(store, self.now_ms())]
        finally:
            await store.close()


def _result(work: Coroutine[Any, Any, T]) -> T:
    """Do it now, also where a loop runs, which stands still meanwhile."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result(60)


def _silent(done: int, total: int) -> None:
    """Nobody watches the progress."""


def kinds(mesh: RealMesh) -> list[int]:
    """How many rows of each kind of an accept there are, and where the history ends."""
    relations = ("client_message_dedupe", "topic_message", "message_history", "delivery_queue")
    counts = [
        f"SELECT {number}, count(*) FROM {{{relation}}}"
        for number, relation in enumerate((*relations, "mention_index"))
    ]
    counts.append("SELECT 5, max(history_seq) FROM {mesh}")
    return [count for _, count in sorted(mesh.rows(" UNION ALL ".join(counts)))]


class _Relations(dict[str, str]):
    """The relations of the contract under the names that an engine gives them."""

    def __init__(self, prefix: str) -> None:
        super().__init__()
        self._prefix = prefix

    def __missing__(self, name: str) -> str:
        return self._prefix + name


class HistoryReader:
    """A member that follows the history by `history_id > n`, while everything else goes on."""

    def __init__(self, mesh: RealMesh, key: MemberKey, slug: str) -> None:
        self._mesh = mesh
        self._key = key
        self._slug = slug
        self._is_stopping = threading.Event()
        self._looking = threading.Lock()
        self.after = 0
        self.seen: list[Json] = []
        """What it read, in its order."""
        self._thread = threading.Thread(target=self._follow, name="history-reader", daemon=True)
        self._thread.start()

    def _follow(self) -> None:
        while not self._is_stopping.wait(READ_SECONDS):
            with suppress(OSError, ValueError):  # the broker is dead now and then
                self.look()

    def look(self) -> None:
        """Read on until there is no more."""
        with self._looking:
            has_more = True
            while has_more:
                path = f"/mesh/{self._slug}/history?after={self.after}&limit=50"
                page = self._mesh.as_member(self._key, "GET", path, slug=self._slug)
                self.seen += page["items"]
                self.after, has_more = page["next_after"], page["has_more"]

    def stop(self) -> None:
        """Read no more."""
        self._is_stopping.set()
        self._thread.join(30)
