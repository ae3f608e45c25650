"""The two brokers that are compared, as processes: `tidelog serve` and `nats-server`."""

import json
import secrets
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any, Self

from by_part import SampledServer
from tidelog.daemon.key_file import new_key
from tidelog.mesh.protocol.identity import MemberKey

SLUG = "bench"
TOPIC = "loads"
ADMIN_TOKEN = "an-admin-token-for-the-bench"
START_SECONDS = 20.0
MAX_RATE = 1_000_000
"""Sends of the mesh in a window: the highest that can be set, so that the limiter only counts."""

NATS_CONFIG = """
host: 127.0.0.1
port: {port}
http: "127.0.0.1:{monitor}"
jetstream {{
  store_dir: "{store}"
  sync_interval: always
}}
"""


class Tidelog:
    """Our broker on SQLite at `synchronous=FULL`, or on the store that is given."""

    def __init__(self, home: Path, store: str | None = None) -> None:
        self.process = SampledServer(
            data_dir=home,
            store=store,
            environment={"TIDELOG_ADMIN_TOKEN": ADMIN_TOKEN},
        )

    def __enter__(self) -> Self:
        self.process.start()
        call(self.url, "POST", "/mesh", {"slug": SLUG, "rate_limit": MAX_RATE}, ADMIN_TOKEN)
        return self

    def __exit__(self, *_: object) -> None:
        self.process.__exit__(None, None, None)

    @property
    def pid(self) -> int:
        """Of the process."""
        return self.process.pid

    @property
    def port(self) -> int:
        """Where it listens."""
        return self.process.port

    @property
    def url(self) -> str:
        """What a daemon is given."""
        return self.process.url

    def member(self, name: str, topic: str | None = TOPIC) -> MemberKey:
        """A new member, subscribed to a topic that exists from then on."""
        return new_member(self.url, SLUG, name, topic)


def new_member(url: str, slug: str, name: str, topic: str | None) -> MemberKey:
    """The key of a new member of a mesh, subscribed to a topic that exists from then on."""
    key = new_key()
    invite = call(url, "POST", f"/mesh/{slug}/invites", {}, ADMIN_TOKEN)["invite"]
    request = {
        "invite": invite,
        "member_pubkey": key.public_hex,
        "name": name,
        "signature": key.sign_join(slug, invite, name),
    }
    call(url, "POST", f"/mesh/{slug}/members", request, ADMIN_TOKEN)
    if topic is not None:
        for method, path, body in (
            ("POST", "topics", {"topic": topic}),
            ("PUT", f"topics/{topic}/subscription", {}),
        ):
            token = key.token(slug, unix_now=time.time(), jti=secrets.token_hex(8))
            call(url, method, f"/mesh/{slug}/{path}", body, token)
    return key


def call(url: str, method: str, path: str, body: object, token: str) -> Any:
    """One request to a server; what it says."""
    request = urllib.request.Request(
        url + path,
        data=json.dumps(body).encode(),
        headers={"authorization": f"Bearer {token}"},
        method=method,
    )
    with urllib.request.urlopen(request, timeout=20) as answer:
        return json.load(answer)


class Nats:
    """JetStream with one directory and a sync of the file for every message."""

    def __init__(self, home: Path) -> None:
        home.mkdir(parents=True)
        self.port, self._monitor = free_ports(2)
        self._config = home / "nats.conf"
        self._config.write_text(
            NATS_CONFIG.format(port=self.port, monitor=self._monitor, store=home / "store")
        )
        self._log = home / "nats.log"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        program = shutil.which("nats-server", path=str(Path(sys.executable).parent))
        if program is None:
            raise RuntimeError("nats-server is not installed; run scripts/install")
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [program, "-c", str(self._config)], stdout=log, stderr=log
            )
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
            except OSError:
                time.sleep(0.05)
            else:
                return self
        self.__exit__()
        raise RuntimeError(f"nats-server did not start:\n{self._log.read_text()[-2000:]}")

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    @property
    def pid(self) -> int:
        """Of the process."""
        assert self._process is not None
        return self._process.pid

    def conditions(self) -> dict[str, Any]:
        """What the server itself says about its version and how it syncs."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self._monitor}/varz", timeout=5) as answer:
            said = json.load(answer)
        config = said["jetstream"]["config"]
        return {
            "nats_server": said["version"],
            "go": said["go"],
            "jetstream": {name: config.get(name) for name in ("sync_always", "sync_interval")},
        }


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on."""
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [listener.getsockname()[1] for listener in listeners]
    for listener in listeners:
        listener.close()
    return ports
