"""What `/metrics` said at one moment."""

from collections.abc import Mapping

from prometheus_client.parser import text_string_to_metric_families

from tidelog.base.errors import TidelogError

Labels = frozenset[tuple[str, str]]


class NotMetrics(TidelogError):  # noqa: N818 - the failure is the noun
    """The text is not Prometheus' format, or not of a tidelog server."""


class Scrape:
    """The samples of one look at a server.

    Args:
        values: by name of the sample (`tidelog_refusals_total`), then by its labels.
        at: when, in seconds of a clock that only goes forward.
    """

    def __init__(self, values: Mapping[str, Mapping[Labels, float]], at: float) -> None:
        self._values = values
        self.at = at

    @classmethod
    def parse(cls, text: str, at: float) -> "Scrape":
        """The samples in a response of `/metrics`.

        Raises:
            NotMetrics: whatever answered there is no tidelog server.
        """
        values: dict[str, dict[Labels, float]] = {}
        try:
            for family in text_string_to_metric_families(text):
                for sample in family.samples:
                    labels = frozenset(sample.labels.items())
                    values.setdefault(sample.name, {})[labels] = sample.value
        except ValueError as error:
            raise NotMetrics(f"the response is not in Prometheus' text format ({error})") from None
        if "tidelog_tail_position" not in values:
            raise NotMetrics("the response has no tidelog_tail_position")
        return cls(values, at)

    def after_restart(self) -> "Scrape":
        """What a process that began at this moment would have said: nothing has happened yet."""
        return Scrape({}, self.at)

    def total(self, name: str, **labels: str) -> float:
        """The sum of the samples that have these labels; 0 if there is none."""
        wanted = frozenset(labels.items())
        return sum(value for given, value in self._values.get(name, {}).items() if wanted <= given)

    def by(self, name: str, label: str) -> dict[str, float]:
        """The same by the values of one label, in their order."""
        sums: dict[str, float] = {}
        for given, value in self._values.get(name, {}).items():
            key = dict(given).get(label, "")
            sums[key] = sums.get(key, 0.0) + value
        return dict(sorted(sums.items()))

    def buckets(self, name: str) -> dict[float, float]:
        """Values of a histogram by the upper end of their bucket, not cumulated."""
        cumulated = sorted(
            (float(end), count) for end, count in self.by(f"{name}_bucket", "le").items()
        )
        before = 0.0
        counts: dict[float, float] = {}
        for end, count in cumulated:
            counts[end] = count - before
            before = count
        return counts
