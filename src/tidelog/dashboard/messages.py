"""What the front and the owner's half of the dashboard say to each other over the link."""

from collections.abc import Sequence

from tidelog.dashboard.samples import Counts, Sample
from tidelog.dashboard.sessions import Ended
from tidelog.link.message import Failed, Message, Vocabulary
from tidelog.store.rows import Entry

# From a front.


class Hello(Message, frozen=True):
    """The first message of a front. Answered by `Welcome`."""

    ended: Sequence[Ended]
    """Logins that it knows to be over: it may have outlived an owner, who knew them too."""


class Watch(Message, frozen=True):
    """Tell the entries of these surfaces from now on; none ends it. Answered by `Watching`."""

    surfaces: tuple[str, ...]


class Counted(Message, frozen=True):
    """What this front has of what a sample sums up over all of them."""

    counts: Counts


class LogOut(Message, frozen=True):
    """A login is over. Answered by `Done` when the other nodes are told."""

    ended: Ended

    @property
    def may_repeat(self) -> bool:
        """See `Message.may_repeat`: it is over, however often that is said."""
        return True


ToOwner = Hello | Watch | Counted | LogOut

# From the owner.


class Welcome(Message, frozen=True):
    """What a front that begins must know."""

    samples: Sequence[Sample]
    ended: Sequence[Ended]


class Watching(Message, frozen=True):
    """Entries after this position will be told."""

    position: int


class Done(Message, frozen=True):
    """It is."""


class Written(Message, frozen=True):
    """Entries since the last time; the oldest of them may be missing, if they were many."""

    entries: Sequence[Entry]


class Sampled(Message, frozen=True):
    """A second has passed."""

    sample: Sample
    is_new: bool
    """Whether it says anything that the one before did not."""
    commits: float
    """Transactions since the start; it grows with everything that is written."""


class LoggedOut(Message, frozen=True):
    """A login is over, says another front or another node."""

    ended: Ended


ToFront = Welcome | Watching | Done | Written | Sampled | LoggedOut | Failed

VOCABULARY = Vocabulary(ToOwner, ToFront)
