"""Why an item was rejected, as the wire says it."""

from typing import NamedTuple


class Fault(NamedTuple):
    """One entry of `errors`: which value is wrong and why.

    Faults sort by field, then message, which is the order the protocol wants them in (sync D26).
    """

    field: str
    """Dot path from the item: `event.payload.options.parent`, `partitions.3`."""
    message: str
