"""Tokens: who they speak for, which partitions they open, and everything that refuses one."""

import base64
import hashlib
import hmac
import json
import time
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from jwt.algorithms import get_default_algorithms

from tidelog.base.errors import ConfigError
from tidelog.sync.front.files import read_tokens
from tidelog.sync.protocol.tokens import Claims, TokenRefused, Tokens
from tidelog.sync.settings import SyncSettings

SECRET = "a secret of more than thirty-two bytes"
LATER = int(time.time()) + 1000
KEYS: dict[str, Any] = {
    "RS256": rsa.generate_private_key(public_exponent=65537, key_size=2048),
    "ES256": ec.generate_private_key(ec.SECP256R1()),
    "EdDSA": ed25519.Ed25519PrivateKey.generate(),
}
OTHERS: dict[str, Any] = {
    "RS256": rsa.generate_private_key(public_exponent=65537, key_size=2048),
    "ES256": ec.generate_private_key(ec.SECP256R1()),
    "EdDSA": ed25519.Ed25519PrivateKey.generate(),
}


def configured(secret: str, key_file: str, algorithms: list[str]) -> Tokens:
    """What verifies the tokens of a server with these settings."""
    return read_tokens(
        SyncSettings(jwt_secret=secret, jwt_key_file=key_file, jwt_algorithms=algorithms)
    )


HS256 = configured(SECRET, "", ["HS256"])


def claims(**changes: Any) -> dict[str, Any]:
    """Claims that are fine; None leaves one out."""
    whole = {"client_id": "c", "exp": LATER, "allowed_partitions": ["p"], **changes}
    return {name: value for name, value in whole.items() if value is not None}


def shared(**changes: Any) -> str:
    """A token signed with the shared secret."""
    return jwt.encode(claims(**changes), SECRET, "HS256")


def signed(header: object, payload: bytes, secret: str = SECRET) -> str:
    """A token with any header and payload and a right HS256 signature: what no library makes."""
    parts = [base64.urlsafe_b64encode(part).rstrip(b"=") for part in (_bytes(header), payload)]
    body = b".".join(parts)
    signature = hmac.new(secret.encode(), body, hashlib.sha256).digest()
    return (body + b"." + base64.urlsafe_b64encode(signature).rstrip(b"=")).decode()


def _bytes(header: object) -> bytes:
    return header if isinstance(header, bytes) else json.dumps(header).encode()


def pem(key: Any) -> bytes:
    """The public half as PEM."""
    encoded: bytes = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return encoded


def jwks(**keys: tuple[str, Any]) -> str:
    """A JWKS of the public halves of (algorithm, key) by `kid`; `_` stands for none."""
    entries = []
    for kid, (algorithm, key) in keys.items():
        entry = get_default_algorithms()[algorithm].to_jwk(key.public_key(), as_dict=True)
        entries.append({**entry, "alg": algorithm, **({} if kid == "_" else {"kid": kid})})
    return json.dumps({"keys": entries})


def refused(tokens: Tokens, token: str) -> str:
    """Why a token is refused."""
    with pytest.raises(TokenRefused) as caught:
        tokens.verify(token)
    assert not token or token not in str(caught.value)
    return str(caught.value)


def test_a_shared_secret_verifies() -> None:
    """Claims are read as they were signed; a token of another secret is refused."""
    found = HS256.verify(shared(allowed_partition_prefixes=["a/"], role="editor"))
    assert found.all["role"] == "editor"
    assert found == Claims("c", LATER, frozenset({"p"}), ("a/",), found.all, found.encoded)
    stranger = jwt.encode(claims(), SECRET + "!", "HS256")
    refused(HS256, stranger)
    refused(HS256, shared()[:-4] + "AAAA")


@pytest.mark.parametrize("algorithm", list(KEYS))
def test_a_public_key_verifies_as_pem_and_as_jwks(algorithm: str, tmp_path: Path) -> None:
    """RS256, ES256 and EdDSA tokens of the key are taken, those of another key are not."""
    key_file = tmp_path / "key"
    mine = jwt.encode(claims(), KEYS[algorithm], algorithm)
    named = jwt.encode(claims(), KEYS[algorithm], algorithm, headers={"kid": "k1"})
    foreign = jwt.encode(claims(), OTHERS[algorithm], algorithm)
    for text in (
        pem(KEYS[algorithm]).decode(),
        jwks(_=(algorithm, KEYS[algorithm])),
        jwks(k1=(algorithm, KEYS[algorithm])),
    ):
        key_file.write_text(text, encoding="utf-8")
        tokens = configured("", str(key_file), [algorithm])
        assert tokens.verify(mine).client_id == "c"
        assert tokens.verify(named).client_id == "c"
        refused(tokens, foreign)
        refused(tokens, shared())


def test_several_keys_are_told_apart_by_kid(tmp_path: Path) -> None:
    """With several keys the token's `kid` selects; without one or with an unknown one: refused."""
    key_file = tmp_path / "jwks.json"
    first, second = OTHERS["ES256"], KEYS["ES256"]
    key_file.write_text(jwks(a=("ES256", first), b=("ES256", second), c=("EdDSA", KEYS["EdDSA"])))
    tokens = configured("", str(key_file), ["ES256", "EdDSA"])

    def token(key: Any, kid: str | None, algorithm: str = "ES256") -> str:
        return jwt.encode(claims(), key, algorithm, headers={"kid": kid} if kid else None)

    assert tokens.verify(token(first, "a")).client_id == "c"
    assert tokens.verify(token(second, "b")).client_id == "c"
    assert tokens.verify(token(KEYS["EdDSA"], "c", "EdDSA")).client_id == "c"
    for bad in (
        token(first, "b"),
        token(first, None),
        token(first, "z"),
        token(first, "c"),
        token(KEYS["EdDSA"], "a", "EdDSA"),
    ):
        refused(tokens, bad)


def test_algorithms_can_be_offered_together(tmp_path: Path) -> None:
    """A secret and a key side by side: each token is verified with what its algorithm means."""
    key_file = tmp_path / "key.pem"
    key_file.write_bytes(pem(KEYS["RS256"]))
    tokens = configured(SECRET, str(key_file), ["HS256", "RS256"])
    assert tokens.verify(shared()).client_id == "c"
    assert tokens.verify(jwt.encode(claims(), KEYS["RS256"], "RS256")).client_id == "c"
    confused = signed({"alg": "HS256"}, json.dumps(claims()).encode(), pem(KEYS["RS256"]).decode())
    refused(tokens, confused)


def test_a_token_cannot_choose_its_algorithm(tmp_path: Path) -> None:
    """`none` is never taken, nor an HS256 token made with the public key, nor an unlisted one."""
    key_file = tmp_path / "key.pem"
    key_file.write_bytes(pem(KEYS["RS256"]))
    tokens = configured("", str(key_file), ["RS256"])
    payload = json.dumps(claims()).encode()
    confused = signed({"alg": "HS256", "typ": "JWT"}, payload, pem(KEYS["RS256"]).decode())
    refused(tokens, confused)
    for header in ({"alg": "none"}, {"alg": "None"}, {"alg": ""}, {"alg": ["HS256"]}, {}):
        unsigned = signed(header, payload).rpartition(".")[0] + "."
        refused(tokens, unsigned)
        refused(HS256, unsigned)
        refused(HS256, signed(header, payload))
    refused(HS256, jwt.encode(claims(), SECRET * 2, "HS512"))
    assert (
        configured(SECRET * 2, "", ["HS512"])
        .verify(jwt.encode(claims(), SECRET * 2, "HS512"))
        .client_id
    )


def test_claims_are_kept_whatever_they_are() -> None:
    """Also what only JSON can say; a client's id is stored, and so must be text."""
    odd = {"half": "\ud800", "large": 2**70, "nested": [[{"\udfff": -0.5}]]}
    found = HS256.verify(shared(**odd))
    assert json.loads(found.encoded) == found.all == claims(**odd)
    assert refused(HS256, shared(client_id="c\ud800")) == "client_id has half of a surrogate pair"


@pytest.mark.parametrize(
    "expiry",
    ["null", "true", "false", '"2999999999"', '"soon"', "[2999999999]", "{}", "NaN", "Infinity"],
)
def test_an_expiry_must_be_a_number(expiry: str) -> None:
    """Null, booleans, texts, containers and non-finite numbers are refused (sync D15)."""
    payload = json.dumps(claims(exp="?")).replace('"?"', expiry).encode()
    refused(HS256, signed({"alg": "HS256"}, payload))


def test_an_expiry_is_required_and_without_leeway() -> None:
    """Missing and past are refused; a fraction of a second ahead is still the future."""
    assert refused(HS256, shared(exp=None))
    refused(HS256, shared(exp=int(time.time()) - 1))
    refused(HS256, shared(exp=int(time.time())))
    refused(HS256, shared(exp=-5))
    assert HS256.verify(shared(exp=LATER + 0.5)).expires_at == LATER + 0.5


@pytest.mark.parametrize("client_id", [None, "", 5, True, ["c"], {}])
def test_a_token_speaks_for_somebody(client_id: object) -> None:
    """`client_id` is a non-empty string."""
    refused(HS256, shared(client_id=client_id))
    null = json.dumps({**claims(), "client_id": None}).encode()
    refused(HS256, signed({"alg": "HS256"}, null))


@pytest.mark.parametrize("claim", ["allowed_partitions", "allowed_partition_prefixes"])
@pytest.mark.parametrize("value", ["p", 5, True, {}, [1], ["p", None], [["p"]]])
def test_partition_claims_are_lists_of_names(claim: str, value: object) -> None:
    """Anything else refuses the token rather than opening more or less than was meant."""
    refused(HS256, shared(**{claim: value}))


def test_other_claims_do_not_matter() -> None:
    """Only signature and `exp` are verified: audience, issuer, dates and ids may be anything."""
    odd = claims(aud="x", iss=5, nbf=LATER, iat="never", sub=7, jti=[], extra={"a": 1})
    token = signed({"alg": "HS256"}, json.dumps(odd).encode())
    assert HS256.verify(token).client_id == "c"


@pytest.mark.parametrize(
    "token",
    [
        "",
        ".",
        "..",
        "...",
        "nonsense",
        "a.b.c",
        "\u00e9.\u00e9.\u00e9",
        "\0",
        "=.=.=",
        "e30.e30.e30",
        "e30.e30.",
        "W10.W10.W10",
        "bnVsbA.bnVsbA.bnVsbA",
    ],
)
def test_what_is_no_token_is_refused(token: str) -> None:
    """Whatever a peer sends as a token, the answer is a refusal."""
    refused(HS256, token)


@pytest.mark.parametrize(
    "payload", [b"", b"[]", b"null", b'"x"', b"{", b"\xff", b"{}", b"[" * 100_000]
)
def test_a_signed_payload_that_is_no_claims_is_refused(payload: bytes) -> None:
    """A right signature over something else opens nothing."""
    refused(HS256, signed({"alg": "HS256"}, payload))


@pytest.mark.parametrize(
    "header",
    [
        b"[" * 100_000,
        b'{"alg":"HS256","x":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b"\xff",
        b'{"alg":"HS256","kid":5}',
        b'{"alg":"HS256","crit":["x"],"x":1}',
        b'{"alg":"HS256","b64":false}',
    ],
)
def test_a_hostile_header_is_refused(header: bytes) -> None:
    """The header is read before anything is verified, and only ever leads to a refusal."""
    refused(HS256, signed(header, json.dumps(claims()).encode()))


def test_partitions_are_compared_in_their_normal_form() -> None:
    """Names and prefixes of a token may be decomposed; what is asked is NFC (sync D18)."""
    found = HS256.verify(
        shared(allowed_partitions=["cafe\u0301"], allowed_partition_prefixes=["re\u0301/"])
    )
    assert found.allows("caf\u00e9")
    assert found.allows("r\u00e9/sum\u00e9")
    assert not found.allows("cafe")
    assert not found.allows("caf\u00e9/x")
    assert not found.allows("re/x")
    assert not found.allows("Caf\u00e9")


def test_without_a_claim_nothing_is_allowed_and_the_empty_prefix_allows_all() -> None:
    """Fail closed; `""` is a prefix of everything, and no name is one of another."""
    nothing = HS256.verify(shared(allowed_partitions=None))
    assert not nothing.allows("p")
    assert not nothing.allows("")
    empty = HS256.verify(shared(allowed_partitions=[], allowed_partition_prefixes=[]))
    assert not empty.allows("p")
    assert HS256.verify(shared(allowed_partition_prefixes=[""])).allows("anything")
    exact = HS256.verify(shared())
    assert exact.allows("p")
    assert not exact.allows("pp")


def test_a_secret_that_can_be_guessed_is_no_configuration() -> None:
    """Under 32 bytes, counted in UTF-8, the server does not start; at 32 it does."""
    for short in ("", "x" * 31, "\u00e9" * 15):
        with pytest.raises(ConfigError, match=r"sync\.jwt_secret must have at least 32 bytes"):
            configured(short, "", ["HS256"])
    configured("x" * 32, "", ["HS256"])
    configured("\u00e9" * 16, "", ["HS256"])


def test_configuration_that_verifies_nothing_is_refused(tmp_path: Path) -> None:
    """No or unknown algorithms, and a key file that is missing or no key set."""
    for algorithms in ([], ["none"], ["HS256", "rs256"]):
        with pytest.raises(ConfigError, match="jwt_algorithms"):
            configured(SECRET, "", algorithms)
    with pytest.raises(ConfigError, match="jwt_key_file: name"):
        configured("", "", ["RS256"])
    bad = tmp_path / "keys"
    with pytest.raises(ConfigError, match="jwt_key_file"):
        configured("", str(bad), ["RS256"])
    for text in (b"", b"{}", b"[]", b"nonsense", b'{"keys":[]}', b"\xff\xfe", b'{"keys":[{}]}'):
        bad.write_bytes(text)
        with pytest.raises(ConfigError, match="jwt_key_file"):
            configured("", str(bad), ["RS256"])


def test_a_pem_file_is_judged_at_the_start(tmp_path: Path) -> None:
    """Damaged, private, a certificate, of another kind: the message says what to do instead."""
    key_file = tmp_path / "key.pem"
    whole = pem(KEYS["RS256"])
    private = KEYS["RS256"].private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    certificate = whole.replace(b"PUBLIC KEY", b"CERTIFICATE")
    for text, algorithms, says in (
        (whole[:60] + whole[80:], ["RS256"], "holds no PEM public key"),
        (b"-----BEGIN nothing", ["RS256"], "holds no PEM public key"),
        (certificate, ["RS256"], "holds no PEM public key.*openssl x509"),
        (private, ["RS256"], "holds a private key.*openssl pkey"),
        (whole, ["ES256", "EdDSA"], r"does not fit sync.jwt_algorithms \(ES256, EdDSA\)"),
        (pem(KEYS["ES256"]), ["RS256"], r"does not fit sync.jwt_algorithms \(RS256\)"),
        (pem(KEYS["ES256"]), ["HS256", "EdDSA"], r"does not fit sync.jwt_algorithms \(EdDSA\)"),
    ):
        key_file.write_bytes(text)
        with pytest.raises(
            ConfigError, match=f"^sync.jwt_key_file: {key_file} .*{says}"
        ) as refused:
            configured(SECRET, str(key_file), algorithms)
        assert "PRIVATE" not in str(refused.value), "nothing of the file is repeated"
    key_file.write_bytes(whole)
    tokens = configured("", str(key_file), ["ES256", "RS256"])
    assert tokens.verify(jwt.encode(claims(), KEYS["RS256"], "RS256")).client_id == "c"


def test_keys_that_cannot_be_told_apart_are_refused(tmp_path: Path) -> None:
    """Several keys of one `kid`, or of none, would leave all but the last without effect."""
    key_file = tmp_path / "jwks.json"
    one, other = (json.loads(jwks(_=("ES256", keys["ES256"])))["keys"] for keys in (KEYS, OTHERS))
    key_file.write_text(json.dumps({"keys": one + other}), encoding="utf-8")
    with pytest.raises(ConfigError, match="kid"):
        configured("", str(key_file), ["ES256"])
