"""What a send is, byte for byte: its envelope, and the fingerprint that tells two of them apart.

The daemon computes the fingerprint once when it accepts a send, the broker again from what arrives
(mesh 2.2). Both use this module, so a difference means that something on the way changed the send.
"""

import base64
import binascii
import hashlib
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, NoReturn, TypeGuard

import msgspec
from msgspec import Struct

from tidelog.base.data import strictjson
from tidelog.base.data.canonical import canonical
from tidelog.base.errors import InvalidJson, NotCanonicalizable, TidelogError

ENVELOPE_VERSION: Final = 1
"""The version new sends are made with."""

MAX_ENVELOPE_VERSION = 2**31 - 1
"""Any version has a fingerprint; a broker decides for itself which it understands."""

MAX_REFERENCE_BYTES = 512
"""Of a destination and of a `reply_to_id`: both are index keys on the broker."""

MAX_CLIENT_ID_LENGTH = 128
MAX_MENTIONS = 256
"""Each mention is a row in the broker's transaction."""

MAX_VALUES = strictjson.MAX_VALUES
"""JSON values of a request to a daemon (mesh 2.2). No setting: a broker that took fewer would end
the connection of a daemon that has such a send on its disk, again and again."""

MAX_ENVELOPE_VALUES = MAX_VALUES + 100
"""The same with what a daemon and a frame add around it."""

MAX_NUMBER = 2**53 - 1
"""Beyond it a double and its canonical digits are no longer the same number (mesh D4)."""

Kind = Literal["topic", "dm", "queue"]
Priority = Literal["now", "next", "low"]

KINDS: Final = ("topic", "dm", "queue")
PRIORITIES: Final = ("now", "next", "low")
PREFIX_BYTES = 8

PUBLIC_KEY = re.compile(r"[0-9a-f]{64}")
"""A member's address: an ed25519 public key in lower-case hex."""

_ANY_CASE_KEY = re.compile(r"[0-9A-Fa-f]{64}")
_CLIENT_ID = re.compile(rf"[\x21-\x7e]{{1,{MAX_CLIENT_ID_LENGTH}}}")

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


class RequestRefused(TidelogError):  # noqa: N818 - the failure is the noun
    """A request that is wrong in itself: nothing was written and its id is not consumed."""

    def __init__(self, status: int, code: str, text: str) -> None:
        super().__init__(text)
        self.status = status
        """The HTTP status, which is also the `code` of an `ack` frame."""
        self.code = code
        """The value of `error` in the answer."""


class SendEnvelope(Struct, frozen=True, kw_only=True, array_like=True):
    """Everything of a send that its fingerprint covers, in its only form."""

    envelope_version: int
    destination_kind: Kind
    destination_ref: str
    reply_to_id: str
    """The `broker_message_id` being answered; empty for none."""
    priority: Priority
    meta: bytes
    """Canonical JSON of an object; empty for none."""
    body: bytes

    def preimage(self) -> bytes:
        """The seven fields, joined by single zero bytes."""
        texts = (
            f"{self.envelope_version}\0{self.destination_kind}\0{self.destination_ref}\0"
            f"{self.reply_to_id}\0{self.priority}\0"
        )
        return b"%s%s\0%s" % (
            texts.encode(),
            self.meta,
            hashlib.sha256(self.body).hexdigest().encode(),
        )

    def fingerprint(self) -> bytes:
        """`request_fingerprint`: 32 raw bytes."""
        return hashlib.sha256(self.preimage()).digest()

    def payload(self) -> bytes:
        """The envelope as a JSON object, the very bytes that every attempt sends (mesh 4.8)."""
        text, encoding = body_text(self.body)
        return b"".join(
            (
                b'{"envelope_version":%d' % self.envelope_version,
                b',"destination_kind":' + _encode(self.destination_kind),
                b',"destination_ref":' + _encode(self.destination_ref),
                b',"reply_to_id":' + _encode(self.reply_to_id or None),
                b',"priority":' + _encode(self.priority),
                b',"meta":' + (self.meta or b"null"),
                b',"body":' + _encode(text),
                b',"body_encoding":' + _encode(encoding),
                b"}",
            )
        )


def prefix(fingerprint: bytes) -> str:
    """The beginning of a fingerprint, as replies show it."""
    return fingerprint[:PREFIX_BYTES].hex()


# Reading a request.


def mentions_in(meta: bytes) -> tuple[str, ...]:
    """Keys in `meta.mentions`, each once; whatever else is in there is ignored.

    Raises:
        RequestRefused: there are more than one send may index.
    """
    if b'"mentions"' not in meta:
        return ()
    given = _decode(meta).get("mentions")
    if not isinstance(given, list):
        return ()
    keys = {key for key in given if isinstance(key, str) and PUBLIC_KEY.fullmatch(key)}
    if len(keys) > MAX_MENTIONS:
        raise RequestRefused(400, "schema_invalid", f"more than {MAX_MENTIONS} mentions")
    return tuple(sorted(keys))


def read_object(data: bytes, max_values: int = MAX_ENVELOPE_VALUES) -> dict[str, Any]:
    """The JSON object of a request.

    A fault that lies only inside the member `meta` (a duplicate key, `NaN`, a lone surrogate, a
    number without end) is `meta_not_canonicalizable`; every other one is `schema_invalid`.
    """
    if strictjson.has_more_values(data, max_values):
        _refuse("schema_invalid", f"the request has more than {max_values} JSON values")
    try:
        value = strictjson.read(data)
    except InvalidJson as error:
        code = "meta_not_canonicalizable" if lenient_object(data)[1] else "schema_invalid"
        raise RequestRefused(400, code, str(error)) from None
    if not isinstance(value, dict):
        raise RequestRefused(400, "schema_invalid", "the request is not a JSON object")
    return value


def lenient_object(data: bytes) -> tuple[dict[str, Any] | None, bool]:
    """What can be read of a text that is not strict JSON, and whether only its `meta` is to blame.

    The object, with `meta` left out, is None unless only `meta` is to blame: whoever has to answer
    such a request may need another member of it.
    """
    try:
        pairs = _LENIENT.decode(data.decode(errors="surrogatepass"))
    except (ValueError, RecursionError):
        return None, False
    if not isinstance(pairs, _Pairs) or len({key for key, _ in pairs}) != len(pairs):
        return None, False
    others = {key: value for key, value in pairs if key != "meta"}
    if len(others) == len(pairs) or not all(map(_is_sound, (*others, *others.values()))):
        return None, False
    return {key: _plain(value) for key, value in others.items()}, True


def read_envelope(fields: Mapping[str, Any]) -> SendEnvelope:
    """The envelope in a `send` frame, in a broker's HTTP request or in an outbox payload."""
    version = fields.get("envelope_version")
    if type(version) is not int or not 1 <= version <= MAX_ENVELOPE_VERSION:
        _refuse("schema_invalid", "envelope_version is not a positive integer")
    return make_envelope(
        envelope_version=version,
        destination_kind=fields.get("destination_kind"),
        destination_ref=fields.get("destination_ref"),
        reply_to_id=fields.get("reply_to_id"),
        priority=fields.get("priority"),
        meta=fields.get("meta"),
        body=_body_bytes(fields.get("body"), fields.get("body_encoding", "utf8")),
    )


def make_envelope(
    *,
    destination_kind: object,
    destination_ref: object,
    body: bytes,
    reply_to_id: object = None,
    priority: object = None,
    meta: object = None,
    mentions: object = None,
    envelope_version: int = ENVELOPE_VERSION,
) -> SendEnvelope:
    """Check and normalise what a caller gave; `RequestRefused` says what is wrong with it.

    A name must have been resolved to its key before. The size of the body is the caller's to check.
    """
    if destination_kind not in KINDS:
        _refuse("schema_invalid", f"destination_kind is not one of {', '.join(KINDS)}")
    ref = _reference(destination_ref, "destination_ref", "destination_invalid")
    if not ref or (destination_kind == "dm" and not PUBLIC_KEY.fullmatch(ref)):
        _refuse("destination_invalid", "destination_ref names no destination of its kind")
    if priority is None:
        priority = "next"
    if priority not in PRIORITIES:
        _refuse("schema_invalid", f"priority is not one of {', '.join(PRIORITIES)}")
    reply_to = ""
    if reply_to_id is not None:
        reply_to = _reference(reply_to_id, "reply_to_id", "reply_to_invalid")
    return SendEnvelope(
        envelope_version=envelope_version,
        destination_kind=destination_kind,
        destination_ref=ref,
        reply_to_id=reply_to,
        priority=priority,
        meta=canonical_meta(with_mentions(meta, mentions)),
        body=body,
    )


def canonical_meta(meta: object) -> bytes:
    """The RFC 8785 form of `meta`; empty when it is absent, null or an empty object."""
    if meta is None or meta == {}:
        return b""
    if not isinstance(meta, dict):
        _refuse("schema_invalid", "meta is neither an object nor null")
    if _has_large_number(meta):
        _refuse("meta_not_canonicalizable", "meta has a number beyond 2^53-1; send it as a string")
    try:
        return canonical(meta)
    except NotCanonicalizable as error:
        _refuse("meta_not_canonicalizable", str(error))


def with_mentions(meta: object, mentions: object) -> object:
    """Fold `mentions` into `meta.mentions`: lower-case, sorted, each once."""
    if mentions is None:
        return meta
    if not isinstance(mentions, list) or len(mentions) > MAX_MENTIONS:
        _refuse("schema_invalid", f"mentions is not a list of at most {MAX_MENTIONS} keys")
    if not all(isinstance(key, str) and _ANY_CASE_KEY.fullmatch(key) for key in mentions):
        _refuse("schema_invalid", "mentions has an item that is not a public key of 64 hex digits")
    if meta is not None and not isinstance(meta, dict):
        _refuse("schema_invalid", "meta is neither an object nor null")
    if meta and "mentions" in meta:
        _refuse("mentions_conflict", "both mentions and meta.mentions are given")
    if not mentions:
        return meta
    return {**(meta or {}), "mentions": sorted({key.lower() for key in mentions})}


def choose_client_message_id(
    headers: Sequence[str], in_body: object, mint: Callable[[], str]
) -> str:
    """The id of a send: `Idempotency-Key`, else the body's, else a new one (mesh 2.1).

    Args:
        headers: every value of the header, as it was sent.
        in_body: the member `client_message_id`; None when absent.
        mint: makes a ULID.
    """
    if headers:
        given: object = headers[0] if len(set(headers)) == 1 else ""
    elif in_body is not None:
        given = in_body
    else:
        return mint()
    if not is_client_message_id(given):
        _refuse(
            "client_message_id_invalid",
            f"a client_message_id has 1 to {MAX_CLIENT_ID_LENGTH} characters, each from ! to ~",
        )
    return given


def is_client_message_id(value: object) -> TypeGuard[str]:
    """Whether `value` may name a send."""
    return isinstance(value, str) and _CLIENT_ID.fullmatch(value) is not None


def _refuse(code: str, text: str) -> NoReturn:
    raise RequestRefused(400, code, text)


def _reference(value: object, name: str, code: str) -> str:
    if not isinstance(value, str):
        _refuse("schema_invalid", f"{name} is not text")
    if "\0" in value or len(value.encode()) > MAX_REFERENCE_BYTES:
        _refuse(code, f"{name} holds a NUL or more than {MAX_REFERENCE_BYTES} bytes")
    return value


def body_text(body: bytes) -> tuple[str, str]:
    """The text of a body on the wire, and its `body_encoding`."""
    try:
        return body.decode(), "utf8"
    except UnicodeDecodeError:
        return base64.b64encode(body).decode(), "base64"


def _body_bytes(text: object, encoding: object) -> bytes:
    if not isinstance(text, str):
        _refuse("schema_invalid", "body is not text")
    if encoding == "utf8":
        return text.encode()
    if encoding != "base64":
        _refuse("schema_invalid", "body_encoding is neither utf8 nor base64")
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        _refuse("schema_invalid", "body is not base64")


def _has_large_number(value: object) -> bool:
    pending = [value]
    for node in pending:
        if isinstance(node, dict):
            pending.extend(node.values())
        elif isinstance(node, list):
            pending.extend(node)
        elif isinstance(node, (int, float)) and abs(node) > MAX_NUMBER:
            return True
    return False


# A reader that lets pass what the strict one refuses, to see where the fault lies.


class _Pairs(list[tuple[str, Any]]):
    """An object with every key it was written with."""


_FAULT: Final = object()
"""Stands for a number that JSON does not have."""


def _lenient_float(digits: str) -> object:
    number = float(digits)
    return _FAULT if math.isinf(number) else number


def _lenient_int(digits: str) -> object:
    too_long = len(digits) > strictjson.MAX_INTEGER_DIGITS
    return _FAULT if too_long else int(digits)


_LENIENT = json.JSONDecoder(
    object_pairs_hook=_Pairs,
    parse_float=_lenient_float,
    parse_int=_lenient_int,
    parse_constant=lambda _: _FAULT,
)


def _is_sound(value: Any, depth: int = 1) -> bool:
    if value is _FAULT or depth > strictjson.MAX_DEPTH:
        return False
    if isinstance(value, str):
        return not any("\ud800" <= character <= "\udfff" for character in value)
    if isinstance(value, _Pairs):
        keys = [key for key, _ in value]
        return len(set(keys)) == len(keys) and all(
            _is_sound(part, depth + 1) for pair in value for part in pair
        )
    return not isinstance(value, list) or all(_is_sound(item, depth + 1) for item in value)


def _plain(value: Any) -> Any:
    if isinstance(value, _Pairs):
        return {key: _plain(inner) for key, inner in value}
    return [_plain(item) for item in value] if isinstance(value, list) else value
