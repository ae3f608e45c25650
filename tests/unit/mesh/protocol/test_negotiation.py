"""Broker and daemon agree on features, or the daemon says why not (mesh 9.2)."""

from typing import Any

import pytest

from support.mesh import mesh_cases
from tidelog.mesh.protocol import negotiation
from tidelog.mesh.protocol.negotiation import (
    NegotiationFailed,
    Parameters,
    judge,
    offered,
    response,
)
from tidelog.mesh.protocol.policy import max_age_hours

CASES_REQUIRE = (negotiation.DEDUPE,)
"""The cases are of a daemon that does not know the policies for concurrent connections."""

GOOD = {"version": 2, "mode": "permanent", "request_fingerprint": True}


@pytest.mark.parametrize("case", mesh_cases.params("negotiation"))
def test_case(case: mesh_cases.Case) -> None:
    """What the broker offers is accepted or refused with this code."""
    supported = {name: {"params": params} for name, params in case["supported"].items()}
    if case["result"] == "refuse":
        with pytest.raises(NegotiationFailed) as failed:
            judge(supported, require=CASES_REQUIRE)
        assert failed.value.close_code == case["close_code"]
        assert failed.value.kind == case["kind"]
        return
    parameters, warnings = judge(supported, require=CASES_REQUIRE)
    assert [warning.split(":")[0] for warning in warnings] == (
        [case["warn"]] if "warn" in case else []
    )
    if "max_age_hours" in case:
        days = parameters.dedupe_retention_days
        assert max_age_hours(parameters.mode, days) == case["max_age_hours"]


@pytest.mark.parametrize("mode", ["retention_scoped", "permanent"])
def test_our_broker_suits_our_daemon(mode: Any) -> None:
    """What `offered` and `answer` write, `judge` reads."""
    offer = offered(mode=mode, dedupe_retention_days=30, inline_bytes=2048)
    supported, missing = response(negotiation.REQUIRED, negotiation.OPTIONAL, offer)
    parameters, warnings = judge(supported, missing)
    assert (parameters.mode, parameters.inline_bytes, warnings) == (mode, 2048, [])
    assert parameters.dedupe_retention_days == (30 if mode == "retention_scoped" else None)
    assert parameters.features == (
        "client_message_id_dedupe",
        "concurrent_connection_policy",
        "max_payload",
    )


def test_only_what_was_asked_for_is_answered() -> None:
    """Missing optional features are not mentioned, missing required ones each once."""
    offer = offered(mode="permanent", dedupe_retention_days=365)
    assert response(["x", "x", "max_payload"], ["y"], offer) == (
        {"max_payload": offer["max_payload"]},
        ["x"],
    )


@pytest.mark.parametrize(
    "feature",
    [
        None,
        {},
        {"params": []},
        {"params": {**GOOD, "version": True}},
        {"params": {**GOOD, "mode": "retention_scoped", "dedupe_retention_days": True}},
        {"params": {**GOOD, "mode": "retention_scoped", "dedupe_retention_days": 7.0}},
    ],
)
def test_parameters_of_the_wrong_type_are_invalid(feature: object) -> None:
    """Nothing is guessed for a required parameter."""
    with pytest.raises(NegotiationFailed) as failed:
        judge({negotiation.DEDUPE: feature}, require=CASES_REQUIRE)
    assert failed.value.close_code == 4011


@pytest.mark.parametrize("bad", [{"inline_bytes": 1023}, {"blob_bytes": "1024"}, {"version": 2}])
def test_an_offered_payload_limit_must_be_usable(bad: dict[str, Any]) -> None:
    """A feature that is there is not silently ignored."""
    params = {"version": 1, "inline_bytes": 1024, "blob_bytes": 1024, **bad}
    with pytest.raises(NegotiationFailed) as failed:
        judge(
            {negotiation.DEDUPE: {"params": GOOD}, "max_payload": {"params": params}},
            require=CASES_REQUIRE,
        )
    assert (failed.value.feature, failed.value.close_code) == ("max_payload", 4011)


def test_a_broker_that_says_it_lacks_a_feature_is_believed() -> None:
    """`missing_required` counts even when the feature is listed."""
    with pytest.raises(NegotiationFailed) as failed:
        judge({negotiation.DEDUPE: {"params": GOOD}}, [negotiation.DEDUPE])
    assert failed.value.close_code == 4010


def test_before_any_negotiation_the_narrowest_window_holds() -> None:
    """A daemon that never met its broker assumes seven days and 64 KiB."""
    assert max_age_hours(Parameters().mode, Parameters().dedupe_retention_days) == 144
    assert Parameters().inline_bytes == 65536


@pytest.mark.parametrize("policy", negotiation.CONNECTION_POLICIES)
def test_the_policy_for_concurrent_connections_is_told(policy: Any) -> None:
    """A daemon learns which of two daemons with its key would stay."""
    offer = offered(mode="permanent", dedupe_retention_days=365, connection_policy=policy)
    assert judge(offer)[0].connection_policy == policy


@pytest.mark.parametrize(("params", "warnings"), [({}, 0), ({"default_policy": "prefer_mine"}, 1)])
def test_a_policy_that_is_not_told(params: dict[str, Any], warnings: int) -> None:
    """It is optional: the daemon takes its own default, and logs one that it does not know."""
    offer = offered(mode="permanent", dedupe_retention_days=365)
    offer[negotiation.CONCURRENT_CONNECTIONS] = {"params": {"version": 1, **params}}
    parameters, told = judge(offer)
    assert parameters.connection_policy == "prefer_newest"
    assert len(told) == warnings


def test_a_broker_without_a_policy_does_not_serve() -> None:
    """A daemon that could share its key with a clone unnoticed does not run."""
    offer = offered(mode="permanent", dedupe_retention_days=365)
    del offer[negotiation.CONCURRENT_CONNECTIONS]
    with pytest.raises(NegotiationFailed) as failed:
        judge(offer)
    assert (failed.value.feature, failed.value.close_code) == (
        negotiation.CONCURRENT_CONNECTIONS,
        4010,
    )
