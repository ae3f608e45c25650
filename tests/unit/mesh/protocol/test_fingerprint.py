"""Two sends have one fingerprint exactly when they are the same send (mesh 2)."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.mesh import mesh_cases
from tidelog.mesh.protocol.fingerprint import (
    RequestRefused,
    SendEnvelope,
    choose_client_message_id,
    make_envelope,
    prefix,
    read_envelope,
    read_object,
    with_mentions,
)

KEY_A = "1f" * 32
KEY_B = "a7c3" * 16
BASE = {"destination_kind": "topic", "destination_ref": "alerts", "body": "disk 91% on db-3"}


def envelope_of(case: mesh_cases.Case) -> SendEnvelope:
    """The envelope of a case, its meta read as a request's."""
    request = b"{}"
    if "meta_json" in case:
        request = b'{"meta":' + case["meta_json"].encode() + b"}"
    given_fields = {**BASE, **case}
    body = given_fields["body"].encode()
    if "body_hex" in case:
        body = bytes.fromhex(case["body_hex"])
    return make_envelope(
        envelope_version=case.get("envelope_version", 1),
        destination_kind=given_fields["destination_kind"],
        destination_ref=given_fields["destination_ref"],
        reply_to_id=case.get("reply_to_id"),
        priority=case.get("priority"),
        meta=read_object(request).get("meta"),
        body=body,
    )


@pytest.mark.parametrize("case", mesh_cases.params("fingerprint_vectors"))
def test_vector(case: mesh_cases.Case) -> None:
    """The canonical meta, the preimage's length and the digest are the contract's."""
    envelope = envelope_of(case)
    assert envelope.meta.decode() == case["meta_canonical"]
    assert len(envelope.preimage()) == case["preimage_len"]
    assert envelope.fingerprint().hex() == case["request_fingerprint"]
    assert prefix(envelope.fingerprint()) == case["fingerprint_prefix"]


def test_vectors_differ_unless_linked() -> None:
    """Vectors without an `equal_to` link have different digests."""
    alone = [
        case["request_fingerprint"]
        for case in mesh_cases.cases("fingerprint_vectors")
        if "equal_to" not in case
    ]
    assert len(set(alone)) == len(alone)


@pytest.mark.parametrize("case", mesh_cases.params("fingerprint_rejections"))
def test_rejection(case: mesh_cases.Case) -> None:
    """An input without a fingerprint is refused with its own code."""
    with pytest.raises(RequestRefused) as refused:
        envelope_of(case)
    assert (refused.value.status, refused.value.code) == (case["status"], case["error"])


@pytest.mark.parametrize("case", mesh_cases.params("fingerprint_vectors"))
def test_a_payload_gives_its_envelope_back(case: mesh_cases.Case) -> None:
    """What is stored and sent is the whole envelope: reading it gives the same fingerprint."""
    envelope = envelope_of(case)
    again = read_envelope(read_object(envelope.payload()))
    assert again == envelope


@given(st.binary(max_size=64))
def test_any_body_survives_its_payload(body: bytes) -> None:
    """A body need not be text."""
    envelope = make_envelope(destination_kind="queue", destination_ref="q", body=body)
    assert read_envelope(json.loads(envelope.payload())).body == body


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (b'{"meta":{"a":NaN},"x":1}', "meta_not_canonicalizable"),
        (b'{"meta":{"a":1,"a":1}}', "meta_not_canonicalizable"),
        (b'{"meta":{"a":{"b":-Infinity}}}', "meta_not_canonicalizable"),
        (b'{"meta":{"a":"\xed\xa0\x80"}}', "meta_not_canonicalizable"),
        (b'{"meta":{"a":' + b"9" * 5000 + b"}}", "meta_not_canonicalizable"),
        (b'{"meta":' + b"[" * 70 + b"]" * 70 + b"}", "meta_not_canonicalizable"),
        (b'{"meta":{"a":NaN},"x":NaN}', "schema_invalid"),
        (b'{"meta":{"a":NaN},"x":[{"b":1,"b":2}]}', "schema_invalid"),
        (b'{"meta":{"a":NaN},"meta":{}}', "schema_invalid"),
        (b'{"meta":{"a":NaN},"\\ud800":1}', "schema_invalid"),
        (b'{"x":{"a":1,"a":1}}', "schema_invalid"),
        (b'{"meta":{"a":1}', "schema_invalid"),
        (b'{"meta":{"a":"\xff"}}', "schema_invalid"),
        (b"[NaN]", "schema_invalid"),
        (b"[]", "schema_invalid"),
        (b"[" * 100_000, "schema_invalid"),
        (b"", "schema_invalid"),
    ],
)
def test_only_a_fault_inside_meta_is_metas_fault(text: bytes, code: str) -> None:
    """A JSON fault in `meta` alone is told apart from one anywhere else."""
    with pytest.raises(RequestRefused) as refused:
        read_object(text)
    assert refused.value.code == code


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"destination_ref": ""}, "destination_invalid"),
        ({"destination_ref": 5}, "schema_invalid"),
        ({"destination_ref": "x" * 513}, "destination_invalid"),
        ({"destination_kind": "dm", "destination_ref": KEY_B.upper()}, "destination_invalid"),
        ({"destination_kind": ["topic"]}, "schema_invalid"),
        ({"reply_to_id": 7}, "schema_invalid"),
        ({"priority": ["now"]}, "schema_invalid"),
        ({"envelope_version": 0}, "schema_invalid"),
        ({"envelope_version": True}, "schema_invalid"),
        ({"body": None}, "schema_invalid"),
        ({"body_encoding": "hex"}, "schema_invalid"),
        ({"body": "%", "body_encoding": "base64"}, "schema_invalid"),
        ({"meta": {"n": 1e17}}, "meta_not_canonicalizable"),
        ({"meta": {"n": [-(2**53)]}}, "meta_not_canonicalizable"),
    ],
)
def test_a_field_out_of_its_range_is_refused(fields: dict[str, Any], code: str) -> None:
    """Each wrong field has one code, whatever its type."""
    with pytest.raises(RequestRefused) as refused:
        read_envelope({"envelope_version": 1, **BASE, **fields})
    assert refused.value.code == code


def test_mentions_become_part_of_meta() -> None:
    """They are lower-cased, sorted and unique there, so that order and case do not matter."""
    assert with_mentions({"a": 1}, [KEY_B.upper(), KEY_A, KEY_B]) == {
        "a": 1,
        "mentions": [KEY_A, KEY_B],
    }
    assert with_mentions(None, None) is None
    assert with_mentions(None, []) is None


@pytest.mark.parametrize(
    ("meta", "mentions", "code"),
    [
        ({"mentions": []}, [KEY_A], "mentions_conflict"),
        ({"mentions": []}, [], "mentions_conflict"),
        (None, ["bob"], "schema_invalid"),
        (None, KEY_A, "schema_invalid"),
        (None, [KEY_A] * 257, "schema_invalid"),
        ([], [KEY_A], "schema_invalid"),
    ],
)
def test_wrong_mentions_are_refused(meta: object, mentions: object, code: str) -> None:
    """Two sources of mentions, or none that is one, have no meaning."""
    with pytest.raises(RequestRefused) as refused:
        with_mentions(meta, mentions)
    assert refused.value.code == code


@pytest.mark.parametrize("case", mesh_cases.params("client_message_id_sources"))
def test_id_source(case: mesh_cases.Case) -> None:
    """The header wins, then the body, then a minted id; a bad one is never replaced."""
    in_body = case.get("body_char", "") * case["body_length"] if "body_length" in case else None
    in_body = case.get("body", in_body)
    headers = [] if case["header"] is None else [case["header"]]
    if case["status"] == 400:
        with pytest.raises(RequestRefused) as refused:
            choose_client_message_id(headers, in_body, lambda: "minted_ulid")
        assert refused.value.code == case["error"]
    else:
        chosen = choose_client_message_id(headers, in_body, lambda: "minted_ulid")
        assert chosen == case["effective"]


def test_two_different_headers_are_no_id() -> None:
    """Which of two ids the caller meant cannot be known."""
    with pytest.raises(RequestRefused):
        choose_client_message_id(["a", "b"], None, lambda: "x")
    assert choose_client_message_id(["a", "a"], None, lambda: "x") == "a"
