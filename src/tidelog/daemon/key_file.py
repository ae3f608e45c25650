"""The file that holds a member's key pair (mesh 9.5); what the key proves is `identity`."""

import os
from pathlib import Path

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tidelog.base.data import strictjson
from tidelog.base.errors import InvalidJson, TidelogError
from tidelog.mesh.protocol.identity import MemberKey


class KeyRefused(TidelogError):  # noqa: N818 - the failure is the noun
    """A key file that cannot be used; the text says what to do and never shows the key."""


def new_key() -> MemberKey:
    """A pair that nobody had before."""
    return MemberKey(Ed25519PrivateKey.generate())


def read_key(path: Path) -> MemberKey:
    """The pair in a key file that nobody but its owner can read."""
    try:
        mode = path.stat().st_mode
        text = path.read_bytes()
    except OSError as error:
        raise KeyRefused(f"{path}: {error.strerror}. Name a readable key file.") from error
    if mode & 0o077:
        raise KeyRefused(f"{path} is open to others. Run: chmod 600 {path}")
    try:
        fields = strictjson.read(text)
        key = MemberKey.from_seed(bytes.fromhex(fields["private_key"]))
        matches = fields["public_key"] == key.public_hex
    except (InvalidJson, KeyError, TypeError, ValueError):
        matches = False
        key = None
    if key is None or not matches:
        raise KeyRefused(f"{path} holds no ed25519 key pair. Restore it from a backup.")
    return key


def write_key(path: Path, key: MemberKey) -> None:
    """Make a key file, mode 0600; one that exists is never overwritten."""
    content = {"kind": "ed25519", "public_key": key.public_hex, "private_key": key.seed.hex()}
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise KeyRefused(f"{path} exists. A key that is overwritten is lost.") from None
    with os.fdopen(handle, "wb") as file:
        file.write(msgspec.json.encode(content) + b"\n")
        file.flush()
        os.fsync(file.fileno())
