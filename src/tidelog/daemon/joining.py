"""How a key becomes a member's, and how it ends that: with an invite, and by itself."""

import json
import secrets
import time
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from tidelog.base.errors import ConfigError
from tidelog.daemon.address import resource_url
from tidelog.daemon.broker_http import call
from tidelog.mesh.identity import MemberKey, read_key, write_key

LEAVE_PATIENCE_S = 2.0
"""How long a daemon that ends waits for a broker that nobody hears."""


class Invite(NamedTuple):
    """An invite, taken apart."""

    broker: str
    slug: str
    secret: str


def read_invite(link: str) -> Invite:
    """What `tidelog mesh invite` printed; `ConfigError` if it is something else."""
    parts = urlsplit(link)
    before, _, slug = parts.path.rpartition("/mesh/")
    if parts.scheme not in ("http", "https") or not slug or "/" in slug or not parts.fragment:
        raise ConfigError(
            "that is no invite. It looks like https://broker/mesh/SLUG#SECRET; put it in quotes, "
            "because a shell may take # for a comment."
        )
    return Invite(f"{parts.scheme}://{parts.netloc}{before}", slug, parts.fragment)


def register(invite: Invite, name: str, key: MemberKey) -> dict[str, Any]:
    """Make a key a member's; safe to repeat with the same key and name."""
    request = {
        "invite": invite.secret,
        "member_pubkey": key.public_hex,
        "name": name,
        "signature": key.sign_join(invite.slug, invite.secret, name),
    }
    return call(resource_url(invite.broker, invite.slug, "members"), "POST", request, None)


def leave(invite: Invite, key: MemberKey) -> None:
    """End the membership of a key; its name is free again."""
    token = key.token(invite.slug, unix_now=time.time(), jti=secrets.token_hex(16), lifetime_s=60)
    url = resource_url(invite.broker, invite.slug, "membership")
    call(url, "DELETE", None, token, LEAVE_PATIENCE_S)


def join(
    directory: Path, key_path: Path, invite: Invite, name: str
) -> tuple[MemberKey, dict[str, Any]]:
    """Make the key of a daemon's directory a member's: the one that is there, or a new one.

    `daemon.toml` says where the daemon belongs; one that an operator has made is left alone.
    """
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    if not key_path.exists():
        write_key(key_path, MemberKey.generate())
    key = read_key(key_path)
    answer = register(invite, name, key)
    path = directory / "daemon.toml"
    if not path.exists():
        lines = [f"mesh = {json.dumps(invite.slug)}", f"broker = {json.dumps(invite.broker)}"]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return key, answer
