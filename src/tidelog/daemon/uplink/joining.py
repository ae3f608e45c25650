"""How a key becomes a member's, and how it ends that: with an invite, and by itself."""

import json
import secrets
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from tidelog.base.errors import ConfigError
from tidelog.base.net.refusal import ServerRefused
from tidelog.base.settings import reading as config
from tidelog.base.terminal import printable
from tidelog.daemon.key_file import new_key, read_key, write_key
from tidelog.daemon.settings import FILE_NAME
from tidelog.daemon.uplink.broker_address import dialled, is_same_broker, resource_url
from tidelog.daemon.uplink.broker_http import call
from tidelog.mesh.protocol.identity import MemberKey
from tidelog.mesh.protocol.slug import is_slug

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
            "that is not an invite. An invite looks like https://broker/mesh/SLUG#SECRET; put it "
            "in quotes, because a shell may take # for a comment."
        )
    if not is_slug(slug):  # a directory is named after it
        raise ConfigError(
            f"{slug[:80]!r} in that invite is not the name of a mesh: 1 to 63 characters of a-z, "
            "0-9, - and _. Copy the invite as `tidelog mesh invite` printed it."
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


def leave(invite: Invite, key: MemberKey, *, names_host: bool) -> None:
    """End the membership of a key; its name is free again."""
    token = key.token(
        invite.slug,
        unix_now=time.time(),
        jti=secrets.token_hex(16),
        lifetime_s=60,
        host=dialled(invite.broker) if names_host else None,
    )
    url = resource_url(invite.broker, invite.slug, "membership")
    call(url, "DELETE", None, token, LEAVE_PATIENCE_S)


def join(
    directory: Path, key_path: Path, invite: Invite, name: str
) -> tuple[MemberKey, dict[str, Any]]:
    """Make the key of a daemon's directory a member's: the one that is there, or a new one.

    `daemon.toml` says where the daemon belongs; what an operator has set in it stays.

    A new key that the broker refuses is removed again. One whose answer was lost may be a member's
    by now, and is used again by the next try.

    Raises:
        ConfigError: the directory belongs to another mesh or broker.
        ServerRefused: the broker refused, or may have: `status` says whether that is certain.
    """
    _refuse_another(directory / FILE_NAME, invite)
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    is_new = not key_path.exists()
    if is_new:
        write_key(key_path, new_key())
    key = read_key(key_path)
    try:
        answer = register(invite, name, key)
    except ServerRefused as error:
        if is_new and error.status < 500:
            key_path.unlink(missing_ok=True)
            with suppress(OSError):  # there is something else in it
                directory.rmdir()
        raise
    _note(directory / FILE_NAME, invite)
    return key, answer


def _note(path: Path, invite: Invite) -> None:
    """Write down where the daemon belongs, before whatever an operator has set already."""
    settings = config.parsed(path) if path.exists() else {}
    wanted = {"mesh": invite.slug, "broker": invite.broker}
    lines = [f"{k} = {json.dumps(v)}\n" for k, v in wanted.items() if k not in settings]
    if lines:
        before = path.read_text(encoding="utf-8") if path.exists() else ""
        path.write_text("".join(lines) + before, encoding="utf-8")


def _refuse_another(path: Path, invite: Invite) -> None:
    """One directory, one key, one broker: a second one could pose as this member at the first."""
    settings = config.parsed(path) if path.exists() else {}
    mesh, broker = settings.get("mesh", invite.slug), settings.get("broker", invite.broker)
    if mesh == invite.slug and is_same_broker(str(broker), invite.broker):
        return
    joined = printable(f"{path.parent} has joined mesh {mesh} at {broker} already.")
    raise ConfigError(
        f"{joined} To join {invite.slug} at {invite.broker} too, name another directory with "
        f"--data-dir; if it is the same broker at a new address, change `broker` in {path}."
    )
