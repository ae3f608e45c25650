"""A key proves its member: in a hello, in a join, in a token (mesh 9.5, 9.7)."""

import json
from pathlib import Path

import pytest

from tidelog.daemon.key_file import KeyRefused, read_key, write_key
from tidelog.mesh.protocol.identity import (
    MemberKey,
    TokenRefused,
    hello_message,
    is_signed,
    join_message,
    to_base64url,
    verify_token,
)

KEY = MemberKey.from_seed(bytes(range(32)))
OTHER = MemberKey.from_seed(bytes(32))
NOW = 1_760_000_000.0


def test_the_public_key_is_rfc_8032s() -> None:
    """Test vector 1 of RFC 8032 gives its public key and signature."""
    seed = "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60"
    key = MemberKey.from_seed(bytes.fromhex(seed))
    assert key.public_hex == "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"
    assert key.sign(b"").startswith("e5564300c360ac729086e2cc806e828a")


def test_a_hello_is_good_for_its_challenge_and_mesh_only() -> None:
    """Neither another challenge, another mesh nor another key accepts it."""
    signature = KEY.sign_hello("ops", b"c" * 32)
    assert is_signed(KEY.public_hex, hello_message("ops", b"c" * 32), signature)
    assert not is_signed(KEY.public_hex, hello_message("ops", b"d" * 32), signature)
    assert not is_signed(KEY.public_hex, hello_message("dev", b"c" * 32), signature)
    assert not is_signed(OTHER.public_hex, hello_message("ops", b"c" * 32), signature)
    assert not is_signed(KEY.public_hex.upper(), hello_message("ops", b"c" * 32), signature)
    assert not is_signed(KEY.public_hex, hello_message("ops", b"c" * 32), "zz")


def test_a_join_names_its_invite() -> None:
    """A signature for one invite is none for another."""
    signature = KEY.sign_join("ops", "invite-1", "bob")
    assert is_signed(KEY.public_hex, join_message("ops", "invite-1", "bob"), signature)
    assert not is_signed(KEY.public_hex, join_message("ops", "invite-2", "bob"), signature)


def test_a_token_gives_its_claims_back() -> None:
    """Its owner, its id and its end are what the broker reads."""
    claims = verify_token(KEY.token("ops", unix_now=NOW, jti="j1"), "ops", NOW)
    assert (claims.public_hex, claims.jti, claims.expires_at) == (KEY.public_hex, "j1", NOW + 300)


def forged(header: object, claims: object, key: MemberKey = KEY) -> str:
    """A token with any content, truly signed."""
    signed = ".".join(to_base64url(json.dumps(part).encode()) for part in (header, claims))
    return f"{signed}.{to_base64url(bytes.fromhex(key.sign(signed.encode())))}"


HEADER = {"alg": "EdDSA"}
CLAIMS = {"sub": KEY.public_hex, "aud": "ops", "exp": int(NOW) + 100, "jti": "j"}


@pytest.mark.parametrize(
    "token",
    [
        "",
        "a.b",
        "a.b.c",
        "é.b.c",
        forged({"alg": "none"}, CLAIMS),
        forged({"alg": "EdDSA", "crit": []}, CLAIMS),
        forged(HEADER, []),
        forged(HEADER, CLAIMS, OTHER),
        forged(HEADER, {**CLAIMS, "sub": 1}),
        forged(HEADER, {**CLAIMS, "aud": "dev"}),
        forged(HEADER, {**CLAIMS, "exp": int(NOW)}),
        forged(HEADER, {**CLAIMS, "exp": NOW + 1}),
        forged(HEADER, {**CLAIMS, "exp": int(NOW) + 331}),
        forged(HEADER, {**CLAIMS, "jti": ""}),
        forged(HEADER, {**CLAIMS, "jti": "x" * 65}),
        forged(HEADER, {**CLAIMS, "x": "y" * 3000}),
    ],
)
def test_any_other_token_is_refused(token: str) -> None:
    """Each part of a token must be right."""
    assert verify_token(forged(HEADER, CLAIMS), "ops", NOW).jti == "j"
    with pytest.raises(TokenRefused):
        verify_token(token, "ops", NOW)


def test_a_key_file_is_private_and_kept(tmp_path: Path) -> None:
    """It is written once with mode 0600 and gives its key back."""
    path = tmp_path / "key.json"
    write_key(path, KEY)
    assert path.stat().st_mode & 0o777 == 0o600
    assert read_key(path).public_hex == KEY.public_hex
    with pytest.raises(KeyRefused, match="exists"):
        write_key(path, OTHER)
    path.chmod(0o640)
    with pytest.raises(KeyRefused, match="chmod 600"):
        read_key(path)


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b"{}", b'{"private_key":"00","public_key":""}', b'{"private_key":5}'],
)
def test_a_broken_key_file_is_refused(content: bytes, tmp_path: Path) -> None:
    """A daemon does not start under another identity because its file is damaged."""
    path = tmp_path / "key.json"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(KeyRefused, match="no ed25519 key pair"):
        read_key(path)
    with pytest.raises(KeyRefused, match="No such file"):
        read_key(tmp_path / "absent")
