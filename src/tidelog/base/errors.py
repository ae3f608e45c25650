"""One error type per failure that means the same on every surface.

A surface turns these into its own wire answer; the command line prints `str(error)` and exits.
Every message says what happened and, after it, what to do next. None ever carries a secret.
"""


class TidelogError(Exception):
    """Root of everything tidelog raises on purpose."""


class ConfigError(TidelogError):
    """A setting is unknown, malformed or missing; the message names the nearest right one."""


class InvalidJson(TidelogError):  # noqa: N818 - the failure is the noun
    """Text that is not JSON in the strict sense of `tidelog.base.data.strictjson`."""


class NotCanonicalizable(TidelogError):  # noqa: N818 - the failure is the noun
    """A JSON value that has no RFC 8785 form (a non-finite float, an integer out of range)."""


class QueueFull(TidelogError):  # noqa: N818 - the failure is the noun
    """The committer's bounded queue has no room: reply with the surface's own backpressure."""


class ShuttingDown(TidelogError):  # noqa: N818 - the failure is the noun
    """The server finishes what it accepted and takes nothing new."""


class Unsendable(TidelogError):  # noqa: N818 - the failure is the noun
    """A message between the halves of a server is too large, or cannot be encoded."""


class TooLargeToSend(Unsendable):
    """It is too large: less of it at a time can be sent."""


class OtherVersion(TidelogError):  # noqa: N818 - the failure is the noun
    """Two processes of a server are of different versions of tidelog."""


class StoreError(TidelogError):
    """Root of what an engine can raise."""


class DataError(StoreError):
    """One row of the batch is to blame; the same batch without it would commit."""


class StoreUnavailable(StoreError):  # noqa: N818 - the failure is the noun
    """The engine could not do its work and nothing was committed (disk full, connection lost)."""


class HistoryReplaced(StoreUnavailable):
    """The store's log does not go on where this node has seen it end: nothing was committed."""


class Overtaken(StoreUnavailable):
    """Another node wrote after the state that a batch was decided by: decide it again."""


class ClockSkewed(StoreUnavailable):
    """This node's clock and the database's differ by too much to write; the text names no host."""


class OutcomeUnknown(StoreError):  # noqa: N818 - the failure is the noun
    """The connection was lost while COMMIT was in flight; only the head row can tell."""


class StoreUntrustworthy(StoreError):  # noqa: N818 - the failure is the noun
    """A failed fsync: what the page cache shows may never reach the disk. The process must stop."""


class StoreDamaged(StoreError):  # noqa: N818 - the failure is the noun
    """The stored log is not what was written; the message names the recovery command."""


class StoreInUse(StoreError):  # noqa: N818 - the failure is the noun
    """Another server holds this data directory."""


class SchemaTooNew(StoreError):  # noqa: N818 - the failure is the noun
    """The store was written by a newer tidelog than this one."""
