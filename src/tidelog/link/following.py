"""What a front follows, counted: the first who wants a name attaches it, the last detaches it."""

from collections.abc import Iterable


class Following:
    """Names of one kind (streams, partitions), each with how many want it."""

    def __init__(self) -> None:
        self._wanted: dict[str, int] = {}

    def want(self, names: Iterable[str]) -> tuple[str, ...]:
        """One more wants these; returns those that nobody has wanted so far."""
        wanted, new = self._wanted, []
        for name in names:
            count = wanted.get(name, 0)
            wanted[name] = count + 1
            if not count:
                new.append(name)
        return tuple(new)

    def leave(self, names: Iterable[str]) -> tuple[str, ...]:
        """One does not want these any more; returns those that nobody wants now."""
        wanted, gone = self._wanted, []
        for name in names:
            count = wanted[name] - 1
            if count:
                wanted[name] = count
            else:
                del wanted[name]
                gone.append(name)
        return tuple(gone)
