"""What a run of checks examines: what is new since each was last sound, and something old.

The table `verdict` notes of each check the position through which it was found sound, and in which
incarnation of the log. A run examines what came after that, and one old range that nobody can
foresee: so damage done later to what was sound is found sooner or later, and `--full` finds it now.

A noted position is believed if it can be: its digest is that of the entry there, and as many
entries were examined as there are before it. So a position that is further than its check went, or
one that a range was skipped before, shows; then everything is examined again.
"""

import random
from typing import TYPE_CHECKING, NamedTuple

from tidelog.pipeline.source.store_address import GENESIS_DIGEST, Position

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tidelog.pipeline.lake.lake import Lake
    from tidelog.pipeline.source.store_address import StoreAddress, StoreHead

CHECKS = ("continuity", "orphans", "digest", "agreement", "retention", "tables")
"""All checks, in the order they run."""

OLD_SHARE = 50
OLD_LEAST = 1_000
OLD_MOST = 50_000
"""An old range is this part of the log, within these bounds: a few seconds of work, and a log that
is checked every minute is looked at as a whole within an hour or some days."""

POSITION = "position"
"""The rule that a noted position breaks which is not what was examined."""


class Range(NamedTuple):
    """The entries with `after < committed_id <= through`."""

    after: int
    through: int

    @property
    def entries(self) -> int:
        """How many there are, if none is missing."""
        return max(0, self.through - self.after)

    def __str__(self) -> str:
        return f"{self.after + 1} to {self.through}"


class Noted(NamedTuple):
    """What is known of a check that ran."""

    sound: Position
    """Everything up to there was found sound."""
    covered: int
    """Entries that were examined for that: as many as there are up to there."""
    findings: int
    """What it found when it last ran, anywhere."""
    subjects: tuple[str, ...] = ()
    """Tables that it compared, if it compares tables, and how often each was rebuilt."""


class Extent(NamedTuple):
    """What one check is to examine."""

    new: Range
    """Since it was last sound."""
    old: Range | None = None
    """Something before that."""
    problem: str = ""
    """Why what was noted is not believed."""
    note: str = ""
    """Why everything is new, if that is no finding."""

    @property
    def ranges(self) -> tuple[Range, ...]:
        """All of it, in order, without what is empty."""
        both = (self.old, self.new)
        return tuple(each for each in both if each is not None and each.entries)

    @property
    def is_whole(self) -> bool:
        """Whether it is all of the log."""
        return self.new.after == 0


def noted(lake: "Lake") -> dict[str, Noted]:
    """What the table `verdict` notes, by check."""
    if lake.delta("verdict") is None:
        return {}
    return {
        row["check"]: Noted(
            Position(
                row["log_id"],
                row["sound_through"],
                bytes.fromhex(row["digest"]),
                row["incarnation"],
            ),
            row["covered"],
            row["findings"],
            tuple(row["subjects"] or ()),
        )
        for row in lake.arrow("verdict").to_pylist()
    }


def checks_are_current(lake: "Lake", head: "StoreHead") -> bool:
    """Whether all checks were found sound up to the head of the log; tells it without Spark.

    What changes without an entry, such as a delivery that is acknowledged, is not told by this.
    """
    known = noted(lake)
    return all(
        name in known
        and not known[name].findings
        and known[name].sound == head.position
        and known[name].covered == head.committed_id
        for name in CHECKS
    )


def old_range(through: int, seed: int) -> Range | None:
    """A range of positions up to one of them, by chance; None if there are none."""
    size = min(OLD_MOST, max(OLD_LEAST, through // OLD_SHARE), through)
    if not size:
        return None
    after = random.Random(seed).randint(0, through - size)  # noqa: S311 - a sample, no secret
    return Range(after, after + size)


def extent_of(
    known: Noted | None,
    through: int,
    address: "StoreAddress",
    seed: int,
    *,
    full: bool = False,
    subjects: "Iterable[str]" = (),
) -> Extent:
    """What a check is to examine up to a position.

    Args:
        known: What was noted when it last ran; None if it never did.
        through: The last entry to look at.
        address: The store.
        seed: Decides which old range.
        full: Examine everything.
        subjects: Tables that it compares; one that is new or was rebuilt is new as a whole.
    """
    everything = Extent(Range(0, through))
    if known is None:
        return everything
    sound = known.sound
    if address.other_history(sound) is not None:
        return everything._replace(note="the log has another history now, so all of it is new")
    if address.entry_digest_at(sound.committed_id) != sound.digest:
        return everything._replace(
            problem=f"noted is {sound.committed_id}, and the entry there is another one"
        )
    if known.covered != sound.committed_id:
        return everything._replace(
            problem=f"noted is {sound.committed_id}, and {known.covered} entries were examined"
        )
    if full or not sound.committed_id:
        return everything
    if new := sorted({each.split(" ")[0] for each in set(subjects).difference(known.subjects)}):
        return everything._replace(note=f"built as a whole since the last look: {', '.join(new)}")
    begin = min(sound.committed_id, through)
    return Extent(Range(begin, through), old_range(begin, seed))


def begun(log_id: str, incarnation: str) -> Noted:
    """What is noted of a check that found nothing sound yet."""
    return Noted(Position(log_id, 0, GENESIS_DIGEST, incarnation), 0, 0)


def merged(ranges: "Iterable[Range]") -> tuple[Range, ...]:
    """The same positions in as few ranges as possible, in order."""
    found: list[Range] = []
    for each in sorted(ranges):
        if found and each.after <= found[-1].through:
            found[-1] = Range(found[-1].after, max(found[-1].through, each.through))
        elif each.entries:
            found.append(each)
    return tuple(found)
