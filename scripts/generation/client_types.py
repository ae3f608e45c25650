"""What the program decides in the types of tidelog.js."""

import re

from tidelog.channels.protocol.verbs import VERBS


def with_actions(types: str) -> str:
    """clients/js/tidelog.d.ts with the actions of a message; the rest is written by hand."""
    names = " | ".join(f'"{name}"' for name in (*VERBS, "event"))
    made, count = re.subn(
        "^export type Action = .*$", f"export type Action = {names};", types, flags=re.MULTILINE
    )
    if count != 1:
        raise ValueError("clients/js/tidelog.d.ts needs one line `export type Action = ...;`")
    return made
