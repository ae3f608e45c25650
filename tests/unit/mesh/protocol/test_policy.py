"""The outbox's tables are the contract's (mesh 3.3, 4.1 to 4.4)."""

from typing import Any

import pytest

from support.mesh import mesh_cases
from tidelog.mesh.protocol import negotiation
from tidelog.mesh.protocol.policy import (
    STATUSES,
    TRANSITIONS,
    Existing,
    MaxAgeRefused,
    Status,
    backoff_ms,
    look_up,
    max_age_hours,
    override_ceiling_hours,
    proves_absence,
    retire_error,
    retry_delay_ms,
    safety_margin_hours,
    status_after,
)

FINGERPRINT = bytes(range(32))
OTHER = bytes(32)


@pytest.mark.parametrize("case", mesh_cases.params("ipc_lookup"))
def test_lookup(case: mesh_cases.Case) -> None:
    """State times match gives exactly this answer."""
    stored = FINGERPRINT if case["match"] == "match" else OTHER
    existing = None
    if case["state"] != "no_row":
        existing = Existing(stored, case["state"], "01B", 7, "403 not_subscribed")
    verdict = look_up("id-1", FINGERPRINT, existing)
    meant = {
        "<id>": "id-1",
        "<req.fp16>": FINGERPRINT.hex()[:16],
        "<row.fp16>": stored.hex()[:16],
        "<row.broker_message_id>": "01B",
        "<row.history_id>": 7,
        "<row.last_error>": "403 not_subscribed",
    }
    assert verdict.status == case["status"]
    assert verdict.body == {
        key: meant.get(value, value) if isinstance(value, str) else value
        for key, value in case["body"].items()
    }
    assert verdict.inserts == (case["row_mutation"] == "insert_pending")
    assert not set(case["body_absent"]) & set(verdict.body)


@pytest.mark.parametrize("case", mesh_cases.params("daemon_outcomes"))
def test_outcome(case: mesh_cases.Case) -> None:
    """Each class of answer has its status; silence is transient and age is final."""
    answer = case["answer"]
    if answer == "none":
        assert ("pending", case["status"]) in TRANSITIONS
        return
    assert status_after(answer if isinstance(answer, int) else None) == case["status"]
    if "retry_after_s" in case:
        assert retry_delay_ms(1, 0.8, case["retry_after_s"]) >= case["next_attempt_min_ms"]


@pytest.mark.parametrize("code", [425, 502, 100, 204, 302, 599])
def test_what_is_not_a_permanent_refusal_is_retried(code: int) -> None:
    """Only a 4xx that blames the request ends a row."""
    assert status_after(code) == "pending"


@pytest.mark.parametrize("case", mesh_cases.params("backoff_ms"))
def test_backoff(case: mesh_cases.Case) -> None:
    """Doubling from 500 ms to 30 s, within the jitter."""
    assert backoff_ms(case["attempts"]) == case["delay"]
    assert retry_delay_ms(case["attempts"], 0.8) == case["delay"] * 0.8
    assert retry_delay_ms(case["attempts"], 1.2) == case["delay"] * 1.2


def test_retry_after_never_lowers_a_delay() -> None:
    """A broker may ask for more time, not for less."""
    assert retry_delay_ms(7, 1.0, 1) == 30_000
    assert retry_delay_ms(10**6, 1.0, 60) == 60_000


@pytest.mark.parametrize("case", mesh_cases.params("max_age"))
def test_max_age(case: mesh_cases.Case) -> None:
    """The formula, its override and its refusals."""
    mode, days = case["mode"], case.get("dedupe_retention_days")
    if "close_code" in case:
        params: dict[str, Any] = {"version": 2, "mode": mode, "request_fingerprint": True}
        if days is not None:
            params["dedupe_retention_days"] = days
        with pytest.raises(negotiation.NegotiationFailed) as failed:
            negotiation.judge(
                {negotiation.DEDUPE: {"params": params}}, require=(negotiation.DEDUPE,)
            )
        assert (failed.value.kind, failed.value.close_code) == (case["refuse"], case["close_code"])
        return
    options: dict[str, Any] = {"override": case.get("override")}
    if "max_age_hours_default" in case:
        options["default"] = case["max_age_hours_default"]
    if "refuse" in case:
        with pytest.raises(MaxAgeRefused) as refused:
            max_age_hours(mode, days, **options)
        assert refused.value.code == case["refuse"]
        return
    assert max_age_hours(mode, days, **options) == case["max_age_hours"]
    if "safety_margin_hours" in case:
        assert safety_margin_hours(case["dedupe_retention_days"]) == case["safety_margin_hours"]
    if "override_ceiling" in case:
        assert override_ceiling_hours(mode, days) == case["override_ceiling"]


@pytest.mark.parametrize("status", STATUSES)
def test_only_what_waits_or_failed_is_retired(status: Status) -> None:
    """An attempt under way, a delivered row and a retired one stay as they are."""
    assert (retire_error(status) is None) == (status in ("pending", "dead"))


def test_final_states_are_final() -> None:
    """Nothing leaves `done` or `aborted`."""
    assert not {before for before, _ in TRANSITIONS} & {"done", "aborted"}


@pytest.mark.parametrize(
    ("last_error", "attempts", "proves"),
    [
        ("404 topic_not_found", 1, True),
        ("409 idempotency_key_reused request_fingerprint_mismatch", 3, True),
        ("403 not_a_member", 1, True),
        ("403 not_a_member", 2, False),
        ("404 mesh_not_found", 2, False),
        ("429 rate_limited", 1, False),
        ("503 unavailable", 1, False),
        ("no answer within the request timeout", 1, False),
        ("max_age_exceeded", 1, False),
        (None, 1, False),
    ],
)
def test_what_an_error_proves(last_error: str | None, attempts: int, proves: bool) -> None:
    """Only a refusal for good says that the broker has no such message, and not at the gate."""
    assert proves_absence(last_error, attempts) is proves
