"""How much a link carries and holds. All of its bounds are here, because they depend on each other.

A message is at most `MAX_MESSAGE_BYTES`, whoever sends it; a larger one is refused where it is sent
(`Unsendable`), and the link goes on. An end with more than `HIGH_WATER_BYTES` to read holds the
brake of the tail until it is down to `LOW_WATER_BYTES`, so catching up with other nodes does not
overrun it. An end with more than `MAX_WAITING_BYTES` to read is dropped: that is as much as a
largest message beside all that a healthy end can have waiting, so none is dropped for one message.
"""

MAX_MESSAGE_BYTES = 65 * 1024**2
"""What the settings let a client of sync send at most, which is 64 MiB, and what goes with it. Only
a partition's state, which an administrator may ask for, can be larger."""

FRAME_BYTES = 1024**2
MAX_FRAME_MESSAGES = 512
"""A frame ends with either, so that whoever reads it gets to something else soon. A larger message
is a frame by itself."""

COUNT_BYTES = 3
"""In front of the messages of a frame: how many they are."""

MAX_FRAME_BYTES = MAX_MESSAGE_BYTES + COUNT_BYTES
"""A frame that says it is larger is none: the other end does not speak this protocol."""

HIGH_WATER_BYTES = 8 * 1024**2
LOW_WATER_BYTES = 1024**2

MAX_WAITING_BYTES = 2 * MAX_MESSAGE_BYTES
"""Of messages that the other end has not read. A front that is this far behind could not tell its
clients anything in time, and what waits for it is memory of the owner."""

MAX_REPEATED = 10_000
"""Questions that wait for the next owner when one is lost. Each is a request whose body a front has
in memory anyway; those beyond it are told that their outcome is unknown."""

BEAT_SECONDS = 1.0
"""Each end says so often that it lives."""

MOST_SILENT_BEATS = 6
"""An end from which no byte has come between so many beats of ours hangs: it stands still, or its
event loop is held up. They are counted and not timed: who did not beat itself has not read either.
A loaded machine slows both ends; a healthy one that takes longer than this is dropped, and begins
again. `tidelog.base.supervisor` kills what hangs for longer."""
