"""Quantiles of values of which only buckets are known."""

import math
from collections.abc import Sequence


def quantile(bounds: Sequence[float], counts: Sequence[float], share: float) -> float | None:
    """The value below which `share` of the values lie, evenly within its bucket.

    As Prometheus reckons it: a value of the last bucket, which has no end, is taken for that
    bucket's beginning.

    Args:
        bounds: upper ends of the buckets, ascending; the last is infinite.
        counts: how many values fell into each, not cumulated.
        share: from 0 to 1.

    Returns:
        None if there is no value.
    """
    total = sum(counts)
    if total <= 0:
        return None
    wanted, below, seen = share * total, 0.0, 0.0
    for bound, count in zip(bounds, counts, strict=True):
        if count and seen + count >= wanted:
            return below if math.isinf(bound) else below + (bound - below) * (wanted - seen) / count
        seen += count
        below = below if math.isinf(bound) else bound
    return below
