"""Which of two connections with one key stays (mesh 9.6)."""

import pytest

from tidelog.mesh.protocol.concurrent_connections import (
    MAX_INSTANCE_CHARACTERS,
    Resolution,
    instance_in,
    resolve,
)
from tidelog.mesh.protocol.negotiation import CONNECTION_POLICIES, ConnectionPolicy

VERDICTS: dict[ConnectionPolicy, Resolution] = {
    "prefer_newest": Resolution.NEWER_STAYS,
    "prefer_oldest": Resolution.OLDER_STAYS,
    "allow_concurrent": Resolution.BOTH_STAY,
}


@pytest.mark.parametrize("policy", CONNECTION_POLICIES)
@pytest.mark.parametrize(("newer", "older"), [("a", "b"), ("a", ""), ("", "b"), ("", "")])
def test_two_daemons_are_judged_by_the_policy(
    policy: ConnectionPolicy, newer: str, older: str
) -> None:
    """Daemons that do not say which process they are count as two."""
    assert resolve(policy, newer, older) is VERDICTS[policy]


@pytest.mark.parametrize("policy", CONNECTION_POLICIES)
def test_a_daemon_is_no_rival_of_itself(policy: ConnectionPolicy) -> None:
    """Its newer connection takes the place of the one it lost, whatever the policy."""
    assert resolve(policy, "a", "a") is Resolution.SAME_DAEMON


def test_what_a_process_may_call_itself() -> None:
    """Text that is too long or could forge a log line counts as nothing."""
    longest = "a" * MAX_INSTANCE_CHARACTERS
    assert instance_in(longest) == longest
    assert [instance_in(text) for text in ("", longest + "a", "a\nb", "\u00fc")] == [""] * 4
