"""Two connections with one member's key: which of them stays (mesh 9.6).

A process that lost its connection and opened another one does not compete with itself, although the
broker may take the lost one for alive for a while. A daemon therefore says with its hello which
process it is, by random text that only this process knows.
"""

from enum import Enum, auto

from tidelog.mesh.protocol.negotiation import ConnectionPolicy

MAX_INSTANCE_CHARACTERS = 64
"""Of what a process calls itself; more counts as nothing."""


class Resolution(Enum):
    """What becomes of the older and the newer connection."""

    SAME_DAEMON = auto()
    """One process: the older connection is a leftover and ends, under every policy."""
    NEWER_STAYS = auto()
    OLDER_STAYS = auto()
    BOTH_STAY = auto()


def resolve(policy: ConnectionPolicy, newer_instance: str, older_instance: str) -> Resolution:
    """The verdict on two connections with one key."""
    if newer_instance and newer_instance == older_instance:
        return Resolution.SAME_DAEMON
    match policy:
        case "prefer_newest":
            return Resolution.NEWER_STAYS
        case "prefer_oldest":
            return Resolution.OLDER_STAYS
        case _:
            return Resolution.BOTH_STAY


def instance_in(text: str) -> str:
    """What a hello says of its process; empty if it says nothing that can be used."""
    is_usable = len(text) <= MAX_INSTANCE_CHARACTERS and text.isascii() and text.isprintable()
    return text if is_usable else ""
