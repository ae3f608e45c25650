"""Bodies of channel requests, made at random: what a client may send, mostly possible.

Keep (absent or null), replace and clear of every field, texts with every kind of escape, values
that are no text, streams that open and end.
"""

import random
from typing import Any

Json = dict[str, Any]

WORDS = (
    *("a", "Hello ", 'quo"te', "back\\slash", "\u00e9", "\U0001f30a", "\u2028", "\ue0000", "\t\n"),
    *("x" * 40, "0", "null", '{"a":1}', "\x7f", "e\u0301", "\0"),
)
EXTRAS: tuple[Json, ...] = (
    {"headers": {"tenant": "acme", "n": 1, "flag": True}},
    {"headers": {"sockudo_action": "message.none", "kept": "yes"}, "own": [1, {"a": None}]},
    {"headers": None, "echo": True},
    {"ai": {"transport": {"status": "streaming"}}},
    {"ai": {"transport": {"status": "streaming"}, "codec": {"status": "streaming"}}},
    {"ai": {"transport": {"status": "complete"}}, "headers": {"end": "1"}},
    {"ai": {"transport": {"status": "cancelled"}}},
)
VALUES: tuple[Any, ...] = (5, -0.5, True, False, [], [1, [2]], {"a": {"b": "c"}}, {})


def text(rng: random.Random) -> str:
    """A short text."""
    return "".join(rng.choices(WORDS, k=rng.randint(1, 3)))


def create(rng: random.Random, tag: str) -> Json:
    """Body of a publish, without its channel."""
    body: Json = {"name": f"n-{tag}", "info": "subscription_count"}
    if rng.random() < 0.9:
        body["data"] = rng.choice([text(rng), text(rng), {"a": [1, "x"]}, 7])
    if rng.random() < 0.5:
        body["extras"] = rng.choice(EXTRAS)
    return body


def append(rng: random.Random, tag: str) -> Json:
    """Body of an append."""
    body: Json = {"data": text(rng), "description": tag}
    if rng.random() < 0.15:
        body["extras"] = rng.choice(EXTRAS)
        if rng.random() < 0.5:
            body |= {"data": "", "extras": EXTRAS[-2]}
    return body


def update(rng: random.Random, tag: str) -> Json:
    """Body of an update."""
    body: Json = {"description": tag}
    choices = {"name": text(rng), "data": rng.choice([text(rng), *VALUES[:2]])}
    if rng.random() < 0.3:
        choices["data"] = rng.choice(VALUES)
    choices["extras"] = rng.choice(EXTRAS)
    _tri_state(rng, body, choices)
    return body


def delete(rng: random.Random, tag: str) -> Json:
    """Body of a delete."""
    body: Json = {"description": tag}
    _tri_state(rng, body, {"data": text(rng), "extras": rng.choice(EXTRAS), "name": None})
    if rng.random() < 0.3:
        body["name"] = "ignored (channels D17)"
        body["clear_fields"] = [f for f in body.get("clear_fields", ()) if f != "name"]
    return body


def _tri_state(rng: random.Random, body: Json, values: Json) -> None:
    """Each field is kept (absent or null), replaced or cleared."""
    cleared = []
    for field, value in values.items():
        wish = rng.choice(["keep", "null", "replace", "clear"])
        if wish == "null":
            body[field] = None
        elif wish == "replace" and value is not None:
            body[field] = value
        elif wish == "clear":
            cleared.append(field)
    if cleared or rng.random() < 0.2:
        body["clear_fields"] = cleared


MAKERS = {"create": create, "append": append, "update": update, "delete": delete}
"""By action."""
