"""Metrics of several processes as those of one server.

What a process counted stays counted when it is gone: a counter that went back would look to
whoever reads it as if everything had begun again.
"""

from collections.abc import Iterable, Sequence

import msgspec
from msgspec import Struct
from prometheus_client import CollectorRegistry, Metric, generate_latest

TOPIC = "metrics"
"""What processes ask each other for."""

OF_A_PROCESS = "process_"
"""Beginning of the names of what is no sum: memory, processor time and files of each process, which
are told apart by the label `process`."""

_GROWING = ("counter", "histogram", "summary")
_CREATED = "_created"

Labels = tuple[tuple[str, str], ...]


class Family(Struct, frozen=True, array_like=True):
    """All samples of one metric."""

    name: str
    kind: str
    text: str
    samples: list[tuple[str, Labels, float]]


Families = Sequence[Family]

_decoder = msgspec.msgpack.Decoder(list[Family])


def collected(registry: CollectorRegistry) -> Families:
    """What a registry has now."""
    return [
        Family(
            each.name,
            each.type,
            each.documentation,
            [(one.name, tuple(one.labels.items()), one.value) for one in each.samples],
        )
        for each in registry.collect()
    ]


def encoded(given: Families) -> bytes:
    """The same for another process."""
    return msgspec.msgpack.encode(given)


def decoded(given: bytes) -> Families:
    """What another process has encoded."""
    return _decoder.decode(given)


def growing(given: Families) -> Families:
    """Of a process that is gone: what was counted."""
    return [
        each for each in given if each.kind in _GROWING and not each.name.startswith(OF_A_PROCESS)
    ]


def totals(parts: Iterable[tuple[str, Families]]) -> Families:
    """The sums over processes, each with its name, in the order of the first.

    A gauge is summed too: each process sets its part of it, or one alone sets it at all.
    """
    found: dict[str, Family] = {}
    sums: dict[str, dict[tuple[str, Labels], float]] = {}
    for process, given in parts:
        for each in given:
            found.setdefault(each.name, each)
            summed = sums.setdefault(each.name, {})
            own = (("process", process),) if each.name.startswith(OF_A_PROCESS) else ()
            for name, labels, value in each.samples:
                key = name, (*own, *labels)
                if key not in summed:
                    summed[key] = value
                elif name.endswith(_CREATED):
                    summed[key] = min(summed[key], value)
                else:
                    summed[key] += value
    return [
        Family(
            each.name,
            each.kind,
            each.text,
            [(name, labels, value) for (name, labels), value in sums[each.name].items()],
        )
        for each in found.values()
    ]


def rendered(given: Families) -> bytes:
    """In Prometheus' text format."""
    return generate_latest(_Given(given))


class _Given(CollectorRegistry):
    """What is rendered, as a registry."""

    def __init__(self, given: Families) -> None:
        super().__init__()
        self._families = given

    def collect(self) -> Iterable[Metric]:
        for each in self._families:
            metric = Metric(each.name, each.text, each.kind)
            for name, labels, value in each.samples:
                metric.add_sample(name, dict(labels), value)
            yield metric
