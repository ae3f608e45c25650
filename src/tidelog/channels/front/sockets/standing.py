"""Where a channel is, as far as a front has delivered it."""

from tidelog.channels.messages import Attached, Floors
from tidelog.channels.protocol.version import Version


class Standing:
    """Serials, floors and epoch of a channel that keeps a history.

    Of a channel that is followed it is brought up to what comes over the link; of any other it is
    what the owner has said a moment ago.
    """

    __slots__ = (
        "_newest",
        "delivered_history",
        "delivered_serial",
        "epoch",
        "history_floor",
        "replay_floor",
    )

    def __init__(self, attached: Attached) -> None:
        self.epoch = attached.epoch
        """How often the history was reset; the `stream_id` depends on it."""
        self.history_floor = attached.history_floor
        """History up to here was purged."""
        self.replay_floor = attached.replay_floor
        """Versions up to this delivery serial were emptied; what is after them can be replayed."""
        self.delivered_serial = attached.delivered_serial
        """The last delivery serial that has come here."""
        self.delivered_history = attached.delivered_history
        self._newest = attached.history_serial

    @property
    def history_serial(self) -> int:
        """The newest one that is known; it may be on its way here."""
        return max(self._newest, self.delivered_history)

    def delivered(self, version: Version) -> None:
        """The next version has come."""
        if version.delivery_serial > self.delivered_serial:
            self.delivered_serial = version.delivery_serial
            self.delivered_history = max(self.delivered_history, version.history_serial)

    def rise(self, floors: Floors) -> None:
        """Something was erased."""
        self.epoch = floors.epoch
        self.history_floor = floors.history_floor
        self.replay_floor = floors.replay_floor
