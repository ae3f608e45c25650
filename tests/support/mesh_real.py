"""The real broker as a process, with a mesh that real daemons are members of."""

import json
import secrets
import sqlite3
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any, Self

from support.mesh_broker import SLUG
from support.mesh_daemon import DaemonProcess
from tidelog.mesh.identity import MemberKey
from tidelog.testing.process import ServerProcess

ADMIN_TOKEN = "an-admin-token-for-tests"
TOPIC = "tides"
LEASE_MS = 1000
"""Of a delivery; short, because tests wait for it to end."""


class RealMesh:
    """`tidelog serve` on SQLite, a mesh and a topic."""

    def __init__(self, data_dir: Path) -> None:
        self.server = ServerProcess(
            data_dir=data_dir,
            environment={
                "TIDELOG_ADMIN_TOKEN": ADMIN_TOKEN,
                "TIDELOG_MESH_LEASE_MS": str(LEASE_MS),
                "TIDELOG_MESH_REAPER_INTERVAL_MS": "200",
            },
        )

    def __enter__(self) -> Self:
        self.server.start()
        self.call("POST", "/mesh", {"slug": SLUG})
        return self

    def __exit__(self, *_: object) -> None:
        self.server.__exit__(None, None, None)

    def daemon(
        self, name: str, *, settings: str = "", broker_url: str | None = None
    ) -> DaemonProcess:
        """A daemon whose key is a member's; it is not started."""
        key = MemberKey.generate()
        invite = self.call("POST", f"/mesh/{SLUG}/invites", {})["invite"]
        request = {
            "invite": invite,
            "member_pubkey": key.public_hex,
            "name": name,
            "signature": key.sign_join(SLUG, invite, name),
        }
        self.call("POST", f"/mesh/{SLUG}/members", request)
        self.as_member(key, "POST", f"/mesh/{SLUG}/topics", {"topic": TOPIC})
        self.as_member(key, "PUT", f"/mesh/{SLUG}/topics/{TOPIC}/subscription", {})
        return DaemonProcess(broker_url or self.server.url, settings=settings, key=key)

    def as_member(self, key: MemberKey, method: str, path: str, body: object) -> Any:
        """One request with a member's token."""
        token = key.token(SLUG, unix_now=time.time(), jti=secrets.token_hex(8))
        return self.call(method, path, body, token)

    def call(self, method: str, path: str, body: object, token: str = ADMIN_TOKEN) -> Any:
        """One HTTP request."""
        request = urllib.request.Request(
            self.server.url + path,
            data=json.dumps(body).encode(),
            headers={"authorization": f"Bearer {token}"},
            method=method,
        )
        with urllib.request.urlopen(request, timeout=20) as answer:
            return json.load(answer)

    # What is stored.

    def _rows(self, query: str) -> list[tuple[Any, ...]]:
        path = self.server.data_dir / "tidelog.db"
        connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=10)
        try:
            return connection.execute(query).fetchall()
        finally:
            connection.close()

    def ids(self) -> dict[str, str]:
        """`broker_message_id` of every accepted id."""
        return dict(
            self._rows(
                "SELECT client_message_id, broker_message_id FROM mesh_client_message_dedupe"
            )
        )

    def messages(self) -> Counter[str]:
        """Stored messages by client id."""
        found = self._rows(
            "SELECT client_message_id FROM mesh_topic_message"
            " UNION ALL SELECT client_message_id FROM mesh_message_queue"
        )
        return Counter(row[0] for row in found)

    def undelivered(self) -> int:
        """Deliveries that no receiver has acknowledged."""
        [(count,)] = self._rows(
            "SELECT count(*) FROM mesh_delivery_queue WHERE status <> 'delivered'"
        )
        return int(count)

    def check(self) -> None:
        """`tidelog mesh check` finds nothing: G3 and G8."""
        command = [sys.executable, "-m", "tidelog", "mesh", "check", "--data-dir"]
        found = subprocess.run(
            [*command, str(self.server.data_dir)], capture_output=True, text=True, check=False
        )
        assert found.returncode == 0, found.stdout + found.stderr
