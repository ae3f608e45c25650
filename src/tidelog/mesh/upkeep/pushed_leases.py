"""What a front has leased to push, so that it can be given back when the front is lost."""

from collections.abc import Iterator

from tidelog.base.clock import Clock
from tidelog.mesh.messages import Acknowledge, Leased, RecipientKey, Release


class PushedLeases:
    """The leases of one front that are neither acknowledged, given back nor over.

    They end about in the order in which they were made, so those that are over go when another one
    is made: no more are kept than can be leased at one time.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._held: dict[tuple[str, str], tuple[str, str, int]] = {}
        """By recipient and `broker_message_id`: mesh, `claim_id`, and when it ends."""
        self._has_ended = False

    def add(self, mesh_id: str, recipient: str, leased: Leased) -> Release | None:
        """A claim was decided; returns what is to be given back, if the front is gone by now."""
        if self._has_ended:
            leases = [(message, leased.claim_id) for message, _ in leased.messages]
            return Release(mesh_id, recipient, leases) if leases else None
        self._forget_ended()
        for message, _ in leased.messages:
            self._held[recipient, message] = mesh_id, leased.claim_id, leased.expires_at
        return None

    def _forget_ended(self) -> None:
        now = self._clock.now_ms()
        while self._held:
            oldest = next(iter(self._held))
            if self._held[oldest][2] > now:
                return
            del self._held[oldest]

    def acknowledged(self, told: Acknowledge) -> None:
        """These have arrived."""
        for each in told.arrived:
            self._held.pop((each.recipient, each.broker_message_id), None)

    def released(self, told: Release) -> None:
        """The front itself gives these back."""
        for message, _ in told.leases:
            self._held.pop((told.recipient, message), None)

    def end(self) -> Iterator[Release]:
        """The front is gone: what it gives back by that."""
        self._has_ended = True
        held, self._held = self._held, {}
        by_recipient: dict[RecipientKey, list[tuple[str, str]]] = {}
        for (recipient, message), (mesh_id, claim_id, _) in held.items():
            by_recipient.setdefault((mesh_id, recipient), []).append((message, claim_id))
        for (mesh_id, recipient), leases in by_recipient.items():
            yield Release(mesh_id, recipient, leases)
