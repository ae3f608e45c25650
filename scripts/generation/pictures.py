"""The drawings of the architecture page, as SVG.

Each has its own light ground and dark ink, so it is readable on a light and on a dark page. Nothing
is loaded from elsewhere: text is set in whatever sans serif the reader has.
"""

import tomllib
from html import escape
from pathlib import Path

from tidelog.pipeline.tables import TABLES

ROOT = Path(__file__).parents[2]
NAMESPACE = "http://www.w3.org/2000/svg"  # a name, not an address: nothing is fetched

GROUND = "#f7f9fb"
INK = "#1c2733"
FAINT = "#4a5a6a"
LINE = "#5b7083"
SERVER = "#d9e8f6"
DURABLE = "#fbe3c0"
BESIDE = "#dcefdc"


class Picture:
    """A drawing that grows by boxes, arrows and words."""

    def __init__(self, width: int, height: int, title: str, description: str) -> None:
        self._parts = [
            (
                f'<svg xmlns="{NAMESPACE}" viewBox="0 0 {width} {height}" width="{width}" '
                f'height="{height}" role="img" aria-labelledby="t d" '
                'font-family="system-ui, sans-serif">'
            ),
            f'<title id="t">{escape(title)}</title><desc id="d">{escape(description)}</desc>',
            (
                '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
                f'markerHeight="7" orient="auto"><path d="M0 0L8 4L0 8z" fill="{LINE}"/>'
                "</marker></defs>"
            ),
            f'<rect width="{width}" height="{height}" rx="10" fill="{GROUND}"/>',
        ]

    def box(self, place: tuple[int, int, int, int], fill: str, title: str, *lines: str) -> None:
        """A box at x, y of a width and height, with a title and smaller lines below it."""
        x, y, width, height = place
        self._parts.append(
            f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="6" fill="{fill}" '
            f'stroke="{LINE}"/>'
        )
        top = y + height / 2 - (len(lines) * 16) / 2 + 5
        self.words(x + width / 2, top, title, is_strong=True)
        for number, line in enumerate(lines, start=1):
            self.words(x + width / 2, top + number * 16, line, size=12)

    def arrow(self, start: tuple[int, int], end: tuple[int, int]) -> None:
        """An arrow between two points."""
        self._parts.append(
            f'<line x1="{start[0]}" y1="{start[1]}" x2="{end[0]}" y2="{end[1]}" stroke="{LINE}" '
            'stroke-width="1.6" marker-end="url(#tip)"/>'
        )

    def curve(self, start: tuple[int, int], end: tuple[int, int], *, is_dashed: bool) -> None:
        """An arrow that leaves and arrives level; within a column it goes around on the right."""
        (x1, y1), (x2, y2) = start, end
        bend = 26 if x2 <= x1 else (x2 - x1) // 2
        far = x2 - bend if x2 > x1 else x2 + bend
        dashes = ' stroke-dasharray="4 4"' if is_dashed else ""
        self._parts.append(
            f'<path d="M{x1} {y1}C{x1 + bend} {y1} {far} {y2} {x2} {y2}" fill="none" '
            f'stroke="{LINE}" stroke-width="1.3"{dashes} marker-end="url(#tip)"/>'
        )

    def words(
        self, x: float, y: float, text: str, *, size: int = 14, is_strong: bool = False
    ) -> None:
        """Words around a point."""
        weight = ' font-weight="600"' if is_strong else ""
        colour = INK if is_strong else FAINT
        self._parts.append(
            f'<text x="{x:g}" y="{y:g}" text-anchor="middle" font-size="{size}" '
            f'fill="{colour}"{weight}>{escape(text)}</text>'
        )

    def drawn(self) -> str:
        """The file."""
        return "\n".join([*self._parts, "</svg>"]) + "\n"


def flow() -> str:
    """From a request to its deliveries, and to the lake."""
    picture = Picture(
        860,
        330,
        "The one commit path",
        "A request is decided, committed in one transaction with others, leaves by the tail and is "
        "delivered. The pipeline reads what was committed.",
    )
    steps = (
        ("request", SERVER, "HTTP, WebSocket", "parsed, fingerprint"),
        ("decide", SERVER, "pure function of", "state and request"),
        ("commit", DURABLE, "one transaction", "per batch, synced"),
        ("tail", SERVER, "in order, once,", "as batches"),
        ("deliver", SERVER, "encoded once, one", "write a connection"),
    )
    for number, (title, fill, *lines) in enumerate(steps):
        picture.box((20 + number * 168, 40, 140, 84), fill, title, *lines)
        if number:
            picture.arrow((20 + number * 168 - 28, 82), (20 + number * 168 - 2, 82))
    picture.words(430, 24, "server: milliseconds", size=12)
    picture.arrow((426, 124), (426, 158))
    picture.box(
        (216, 160, 420, 58), DURABLE, "store", "log, keys, state rows: SQLite or PostgreSQL"
    )
    picture.arrow((258, 218), (258, 246))
    behind = (
        ("ingest", "exactly once"),
        ("fold", "tables of the lake"),
        ("check", "second opinion"),
    )
    for number, (title, line) in enumerate(behind):
        picture.box((188 + number * 168, 248, 140, 52), BESIDE, title, line)
        if number:
            picture.arrow((188 + number * 168 - 28, 274), (188 + number * 168 - 2, 274))
    picture.words(430, 320, "Spark: seconds to minutes, reading only", size=12)
    return picture.drawn()


def batch() -> str:
    """One transaction with requests of three surfaces in it."""
    picture = Picture(
        860,
        300,
        "One batch",
        "Requests of all three surfaces wait in one queue, share one transaction, and are answered "
        "in log order after it has committed.",
    )
    askers = (
        ("channels", "append “noon”"),
        ("sync", "submit of 3 events"),
        ("mesh", "send to a topic"),
    )
    for number, (surface, what) in enumerate(askers):
        picture.box((20, 40 + number * 76, 150, 56), SERVER, surface, what)
        picture.arrow((170, 68 + number * 76), (216, 144))
    picture.box((218, 96, 110, 96), SERVER, "queue", "bounded by", "count and bytes")
    picture.arrow((328, 144), (368, 144))
    picture.box(
        (370, 48, 220, 192),
        DURABLE,
        "one transaction",
        "load what requests name",
        "decide one after the other",
        "entries 41 to 45, digests",
        "keys with fingerprints",
        "state, deliveries, mentions",
        "COMMIT, synced",
    )
    for number, (title, line) in enumerate(
        (("answers", "each in log order"), ("entries", "to the tail"), ("refusals", "left nothing"))
    ):
        picture.box((650, 40 + number * 76, 190, 56), SERVER, title, line)
        picture.arrow((590, 144), (648, 68 + number * 76))
    picture.words(430, 280, "nothing is answered or delivered before COMMIT has returned", size=12)
    return picture.drawn()


APART = ("__main__", "client", "daemon", "monitoring", "pipeline")
"""What is no room of the server."""


def rooms() -> str:
    """The packages of the server, from the contracts that the lint tier checks."""
    layers = [[name for name in layer if name not in APART] for layer in _layers("rooms:")]
    layers = [layer for layer in layers if layer]
    down = ", ".join(" | ".join(layer) for layer in layers)
    parts = [name.strip("()") for [name] in _layers("surfaces:")[1:-1]]
    height = 64 + (len(layers) - 1) * 46 + 46 + 16 * len(parts)
    picture = Picture(
        860,
        height,
        "The rooms",
        f"Imports point down: {down}, and in each surface {', '.join(parts)}. "
        "client, daemon and pipeline stand beside.",
    )
    top = 40
    for names in layers:
        width = (500 - (len(names) - 1) * 10) // len(names)
        for place, name in enumerate(names):
            fill = DURABLE if name in ("log", "store") else SERVER
            lines = parts if "sync" in names else []
            picture.box(
                (20 + place * (width + 10), top, width, 36 + 16 * len(lines)), fill, name, *lines
            )
        top += 46 + 16 * (len(parts) if "sync" in names else 0)
    picture.words(270, 24, "the server: imports point down only", size=12)
    beside = (
        ("client", "Python clients", "base, and protocol of the surfaces"),
        ("daemon", "mesh daemon: outbox, inbox", "base, and protocol of mesh"),
        ("pipeline", "Spark: source, tables, checks", "base, config, protocol of the surfaces"),
    )
    room = (height - 64) // len(beside)
    for number, (title, *lines) in enumerate(beside):
        picture.box((560, 40 + number * room, 280, room - 10), BESIDE, title, *lines)
    picture.words(700, 24, "beside it", size=12)
    return picture.drawn()


def _layers(contract: str) -> list[list[str]]:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    found = settings["tool"]["importlinter"]["contracts"]
    layers: list[str] = next(each["layers"] for each in found if each["name"].startswith(contract))
    return [[name.strip() for name in layer.split("|")] for layer in layers]


def lineage() -> str:
    """What each table of the lake is made of; docs/pipeline.md has it as Mermaid."""
    columns = ("bronze", "silver", "gold", "product")
    names = {layer: [t.name for t in TABLES if t.layer == layer] for layer in columns}
    names["product"].append("search index")
    height = 60 + 52 * max(map(len, names.values()))
    picture = Picture(
        860,
        height,
        "Lineage of the tables",
        "; ".join(f"{table.name} is made of {', '.join(table.inputs)}" for table in TABLES),
    )
    places = {"store": (20, height // 2)}
    for column, layer in enumerate(columns):
        picture.words(228 + column * 180, 24, layer, size=12)
        aside = 26 if layer == "gold" else 0  # arrows to the products pass beside its boxes
        top = (height - 52 * len(names[layer])) // 2 + 18 + aside
        for row, name in enumerate(names[layer]):
            places[name] = (158 + column * 180, top + row * 52)
    edges = [("store", "log", False), ("message", "search index", False)]
    for table in TABLES:
        edges += [(name, table.name, False) for name in table.inputs]
        edges += [("store", table.name, True)] if table.relations else []
    for source, target, is_dashed in edges:
        (x1, y1), (x2, y2) = places[source], places[target]
        width = 100 if source == "store" else 140
        end = (x2 + 140, y2 + 10) if x1 == x2 else (x2 - 2, y2 + 18)
        picture.curve((x1 + width, y1 + 18), end, is_dashed=is_dashed)
    for name, (x, y) in places.items():
        is_store = name == "store"
        fill = DURABLE if is_store else BESIDE
        picture.box((x, y, 100 if is_store else 140, 36), fill, name)
    return picture.drawn()
