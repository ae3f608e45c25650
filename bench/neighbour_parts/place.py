"""The server that everybody shares: every surface, a large channel, two meshes and two daemons."""

import asyncio
import datetime as dt
import ipaddress
import json
import ssl
import time
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple, Self

import jwt
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from channels import APP_ID, CONFIG, KEY, SECRET
from mesh_parts.brokers import ADMIN_TOKEN, MAX_RATE, SLUG, TOPIC, call, free_ports, new_member
from mesh_parts.daemons import Daemon
from size_parts.channels import fill
from sync_parts.logs import MODEL
from sync_parts.wire import SECRET as SYNC_SECRET
from tidelog.testing.process import ServerProcess

LARGE_CHANNEL = "long"
FLOODER = "flooder"
FLOOD_TOPIC = "flood"
HOOKS_SLUG = "hooked"
"""A mesh of its own: what is measured is its webhooks, not its rate."""
ENDPOINTS = 16


class Reach(NamedTuple):
    """All that a flood is told."""

    port: int
    app_id: str
    app_key: str
    app_secret: str
    channel: str
    """The large one."""
    messages: int
    """In it."""
    sync_token: str
    slug: str
    topic: str
    member_seed: str
    """A member of the well-behaved client's own mesh."""
    hooks_slug: str
    hooks_seed: str
    """A member of the mesh with webhooks."""
    hooks_port: int
    """Where those are posted to."""
    hooks_certificate: str


class Place:
    """Everything that is started once; gone when the block ends."""

    def __init__(self, home: Path, messages: int) -> None:
        """Prepare.

        Args:
            home: an empty directory.
            messages: in the large channel.
        """
        self._home = home
        self._messages = messages
        self._stack = ExitStack()
        [self._hooks_port] = free_ports(1)
        self._certificate = home / "endpoint.pem"
        self._authorities = home / "authorities.pem"

    def __enter__(self) -> Self:
        data = self._home / "data"
        asyncio.run(fill(data / "tidelog.db", LARGE_CHANNEL, self._messages))
        model = self._home / "model.json"
        model.write_text(json.dumps(MODEL))
        config = self._home / "tidelog.toml"
        config.write_text(
            f'{CONFIG}\n[sync]\njwt_secret = "{SYNC_SECRET}"\nmodel_file = "{model}"\n'
            "[mesh]\nwebhook_allow_private = true\n"
        )
        self._make_certificate()
        self.server = self._stack.enter_context(
            ServerProcess(
                data_dir=data,
                environment={
                    "TIDELOG_ADMIN_TOKEN": ADMIN_TOKEN,
                    "SSL_CERT_FILE": str(self._authorities),
                },
                arguments=("--config", str(config), "--log-level", "warning"),
            )
        )
        try:
            self.server.start()
            self._make_meshes()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _make_meshes(self) -> None:
        call(self.server.url, "POST", "/mesh", {"slug": SLUG}, ADMIN_TOKEN)
        call(
            self.server.url,
            "POST",
            "/mesh",
            {"slug": HOOKS_SLUG, "rate_limit": MAX_RATE},
            ADMIN_TOKEN,
        )
        self._flooder = new_member(self.server.url, SLUG, FLOODER, FLOOD_TOPIC)
        self._hooker = new_member(self.server.url, HOOKS_SLUG, "hooker", TOPIC)
        self.alice, self.bob = (
            self._stack.enter_context(
                Daemon(self.server.url, new_member(self.server.url, SLUG, name, TOPIC))
            )
            for name in ("alice", "bob")
        )
        self.alice.wait_connected()
        self.bob.wait_connected()

    def add_webhooks(self) -> None:
        """Endpoints that are posted to from now on."""
        for number in range(ENDPOINTS):
            url = f"https://localhost:{self._hooks_port}/{number}"
            body = {"url": url, "topic": TOPIC}
            call(self.server.url, "POST", f"/mesh/{HOOKS_SLUG}/webhooks", body, ADMIN_TOKEN)

    def reach(self) -> Reach:
        """What a flood is told."""
        return Reach(
            port=self.server.port,
            app_id=APP_ID,
            app_key=KEY,
            app_secret=SECRET,
            channel=LARGE_CHANNEL,
            messages=self._messages,
            sync_token=sync_token(FLOODER),
            slug=SLUG,
            topic=FLOOD_TOPIC,
            member_seed=self._flooder.seed.hex(),
            hooks_slug=HOOKS_SLUG,
            hooks_seed=self._hooker.seed.hex(),
            hooks_port=self._hooks_port,
            hooks_certificate=str(self._certificate),
        )

    def _make_certificate(self) -> None:
        """One for this machine that the server trusts beside all that the system trusts."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
        now = dt.datetime.now(dt.UTC)
        names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        made = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(days=1))
            .not_valid_after(now + dt.timedelta(days=1))
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .sign(key, hashes.SHA256())
        )
        certificate = made.public_bytes(serialization.Encoding.PEM)
        private = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        self._certificate.write_bytes(certificate + private)
        system = ssl.get_default_verify_paths().cafile
        trusted = Path(system).read_bytes() if system else b""
        self._authorities.write_bytes(trusted + b"\n" + certificate)


def sync_token(client_id: str) -> str:
    """For every partition."""
    claims = {
        "client_id": client_id,
        "exp": int(time.time()) + 86_400,
        "allowed_partition_prefixes": [""],
    }
    return jwt.encode(claims, SYNC_SECRET, "HS256")
