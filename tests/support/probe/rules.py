"""The probe's decisions: pure functions of a view."""

from msgspec import Struct, json

from support.probe.wire import Body, PruneResult, Put, PutResult, StreamState, encode
from tidelog.base.data import strictjson
from tidelog.base.data.canonical import fingerprint
from tidelog.log.decision import Accept, Names, Refuse, RowChange, View
from tidelog.log.dedupe import DedupeRow, KeyUse, key_use
from tidelog.log.draft import Draft
from tidelog.log.retention import empty_bodies
from tidelog.store.rows import Becomes

SURFACE = "probe"
SCOPE = "probe"
STATE = "probe_stream"


def log_stream(stream: str) -> str:
    """The log's name for a stream of the probe."""
    return f"probe/{stream}"


class PutItem(Struct, frozen=True):
    """A put whose stateless work is done."""

    stream: str
    key: str
    body: bytes
    weight: int
    fingerprint: bytes

    def names(self) -> Names:
        """What `decide` reads."""
        return Names(
            dedupe=((SCOPE, self.key),),
            streams=(log_stream(self.stream),),
            rows=((STATE, (self.stream,)),),
        )

    def decide(self, view: View) -> Accept | Refuse:
        """Known key: the stored answer or a conflict. New key: append unless the sum says no."""
        row = view.dedupe(SCOPE, self.key)
        match key_use(row, self.fingerprint):
            case KeyUse.REPEATED:
                return Refuse(_repeated(row))
            case KeyUse.CONFLICTING:
                return Refuse(PutResult(self.key, "conflict", reason="key used for another put"))
            case KeyUse.NEW:
                return self._append(view)

    def _append(self, view: View) -> Accept | Refuse:
        state = stream_state(self.stream, view.rows(STATE, (self.stream,)))
        weight = state.weight + self.weight
        if weight < 0:
            return Refuse(PutResult(self.key, "refused", reason="the sum would be negative"))
        stream = log_stream(self.stream)
        committed_id = view.next_committed_id
        result = PutResult(
            self.key, "committed", committed_id, view.serial(stream) + 1, view.now_ms
        )
        new_row = (self.stream, state.puts + 1, weight, committed_id)
        return Accept(
            result,
            entries=(Draft(stream, SURFACE, "put", self.key, "", "", self.body),),
            dedupe=(
                DedupeRow(
                    SCOPE,
                    self.key,
                    committed_id,
                    self.fingerprint,
                    "",
                    encode(result),
                    1,
                    view.now_ms,
                    None,
                ),
            ),
            rows=(
                RowChange("put_probe_stream", new_row, Becomes(STATE, (self.stream,), (new_row,))),
            ),
        )


class PruneItem(Struct, frozen=True):
    """A prune of one step: the keys of the entries it empties were read before."""

    stream: str
    after: int
    through: int
    keys: tuple[str, ...]

    def names(self) -> Names:
        """What `decide` reads."""
        return Names(streams=(log_stream(self.stream),))

    def decide(self, view: View) -> Accept | Refuse:
        """Refuse what lies beyond the end: it could not be told from what is appended next."""
        stream = log_stream(self.stream)
        if self.through > view.serial(stream) or len(self.keys) != self.through - self.after:
            return Refuse(PruneResult(0, "the stream ended before that serial"))
        return Accept(
            PruneResult(self.through - self.after),
            rows=(empty_bodies(stream, self.after, self.through),),
            unavailable=tuple((SCOPE, key) for key in self.keys),
        )


def stream_state(stream: str, rows: tuple[tuple[object, ...], ...]) -> StreamState:
    """A stream's stored state, or that of a stream nobody has put to."""
    if not rows:
        return StreamState(stream, 0, 0, 0)
    name, puts, weight, last = rows[0]
    assert isinstance(name, str)
    assert isinstance(puts, int)
    assert isinstance(weight, int)
    assert isinstance(last, int)
    return StreamState(name, puts, weight, last)


def prepare_put(put: Put) -> PutItem:
    """The stateless work of a put.

    Raises:
        InvalidJson: the value is not JSON in the strict sense.
        NotCanonicalizable: the value has no canonical form to compare retries by.
    """
    value = strictjson.read(bytes(put.value))
    return PutItem(
        stream=put.stream,
        key=put.key,
        body=encode(Body(put.value, put.weight)),
        weight=put.weight,
        fingerprint=fingerprint([put.stream, value, str(put.weight)]),
    )


def _repeated(row: DedupeRow | None) -> PutResult:
    assert row is not None
    result = json.decode(row.outcome, type=PutResult)
    result.status = "duplicate"
    result.available = bool(row.available)
    return result
