"""The settings of one mesh: their bounds, and what a change makes of them (mesh 6.3, 6.4, 9.4)."""

from collections.abc import Mapping
from typing import Any

from msgspec import structs

from tidelog.mesh.protocol.fingerprint import RequestRefused
from tidelog.mesh.protocol.model import Mesh
from tidelog.mesh.protocol.negotiation import CONNECTION_POLICIES
from tidelog.mesh.protocol.policy import MIN_RETENTION_DAYS

MODES = ("retention_scoped", "permanent")
MAX_DAYS = 36_500
"""A century: more is a unit mistaken for another."""

NUMBERS = {
    "dedupe_retention_days": (MIN_RETENTION_DAYS, MAX_DAYS),
    "message_retention_days": (1, MAX_DAYS),
    "rate_limit": (1, 1_000_000),
    "rate_window_ms": (100, 86_400_000),
}
"""Least and most of each setting that is a number."""

NAMES = ("dedupe_retention_mode", "echo_to_sender", "clone_concurrency_policy", *NUMBERS)


def changed(mesh: Mesh, fields: Mapping[str, Any]) -> Mesh:
    """The mesh with the settings that `fields` names; its other members mean nothing here.

    Raises:
        RequestRefused: a value cannot be.
    """
    new: dict[str, Any] = {name: fields[name] for name in NAMES if name in fields}
    if new.get("dedupe_retention_mode", MODES[0]) not in MODES:
        raise RequestRefused(400, "schema_invalid", f"dedupe_retention_mode is not one of {MODES}")
    if new.get("clone_concurrency_policy", CONNECTION_POLICIES[0]) not in CONNECTION_POLICIES:
        raise RequestRefused(
            400, "schema_invalid", f"clone_concurrency_policy is not one of {CONNECTION_POLICIES}"
        )
    if not isinstance(new.get("echo_to_sender", False), bool):
        raise RequestRefused(400, "schema_invalid", "echo_to_sender is neither true nor false")
    for name, (least, most) in NUMBERS.items():
        value = new.get(name, least)
        is_for_ever = name == "message_retention_days" and value is None
        if not is_for_ever and (type(value) is not int or not least <= value <= most):
            raise RequestRefused(
                400, "schema_invalid", f"{name} is not an integer from {least} to {most}"
            )
    if "echo_to_sender" in new:
        new["echo_to_sender"] = int(new["echo_to_sender"])
    after = structs.replace(mesh, **new)
    if after.dedupe_retention_mode == "permanent":
        return after
    shortest = min(after.dedupe_retention_days, mesh.shortest_window_days or MAX_DAYS)
    return structs.replace(after, shortest_window_days=shortest)


def shown(mesh: Mesh) -> dict[str, Any]:
    """What an administrator sees of a mesh."""
    settings = {name: getattr(mesh, name) for name in NAMES}
    settings["echo_to_sender"] = bool(mesh.echo_to_sender)
    return {"mesh_id": mesh.id, "slug": mesh.slug, **settings}
