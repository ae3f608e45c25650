"""What a check says: what it examined, and what of it breaks which rule."""

from typing import TYPE_CHECKING, NamedTuple

from tidelog.base.terminal import counted
from tidelog.pipeline.checks.extent import Range

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame

FIRST_FINDINGS = 20
"""Findings that are named; of the others only the number is told. Who repairs begins with the
first, and a store in which everything is wrong must not fill the driver's memory."""

FINDING_DDL = "at bigint, rule string, where string, text string"
"""A finding as a row of Spark; `at`, a position of the log, orders them. It may have a `ref` too,
an array of texts: the kind and the name of what is to be looked at again."""


class Finding(NamedTuple):
    """Something that breaks a rule."""

    rule: str
    """Name of the rule."""
    where: str
    """Which row it is."""
    text: str
    """What is wrong with it."""
    at: int | None = None
    """Position of the log that it concerns; None if it concerns none."""
    ref: tuple[str, ...] = ()
    """How it is found again: what kind of thing it is, and its name."""

    def __str__(self) -> str:
        return f"{self.rule}: {self.where}: {self.text}"


class Verdict(NamedTuple):
    """The outcome of one check."""

    check: str
    through: int
    """Position of the log up to which was looked."""
    examined: int
    """Rows that were looked at."""
    findings: tuple[Finding, ...] = ()
    """The first ones."""
    total: int = 0
    """How many there are."""
    notes: tuple[str, ...] = ()
    """What could not be examined, and why that is no finding."""
    uncompared: tuple[str, ...] = ()
    """What was to be compared and could not be at all, and what to do about it."""
    ranges: tuple[Range, ...] = ()
    """Entries that it looked at."""

    @property
    def is_sound(self) -> bool:
        """Whether all that was asked for was looked at, and nothing was found."""
        return self.total == 0 and not self.uncompared

    def without(self, findings: "Sequence[Finding]") -> "Verdict":
        """The same without some of the findings."""
        left = tuple(finding for finding in self.findings if finding not in findings)
        return self._replace(findings=left, total=self.total - (len(self.findings) - len(left)))

    @property
    def told(self) -> tuple[str, ...]:
        """What is to be said before anything else: in words, what is wrong."""
        return (
            *(f"not compared: {what}" for what in self.uncompared),
            *map(str, self.findings),
        )

    def __str__(self) -> str:
        judged = "not compared" if self.uncompared else "sound"
        judged = counted(self.total, "finding") if self.total else judged
        head = f"{self.check}: {judged}; {self.examined} rows examined up to {self.through}"
        if self.ranges and self.ranges != (Range(0, self.through),):
            head += f", of entries {', '.join(map(str, self.ranges))}"
        named = [f"  {text}" for text in self.told]
        if self.total > len(self.findings):
            named.append(f"  ... and {self.total - len(self.findings)} more")
        return "\n".join([head, *(f"  ({note})" for note in self.notes), *named])


def first_of(findings: "DataFrame") -> tuple[tuple[Finding, ...], int]:
    """The first findings of a frame with the columns of `FINDING_DDL`, and how many there are."""
    rows = findings.orderBy("at", "rule", "where").limit(FIRST_FINDINGS).collect()
    named = tuple(
        Finding(
            row["rule"],
            row["where"],
            row["text"],
            row["at"],
            tuple(row["ref"] or ()) if "ref" in row else (),
        )
        for row in rows
    )
    return named, len(named) if len(named) < FIRST_FINDINGS else findings.count()
