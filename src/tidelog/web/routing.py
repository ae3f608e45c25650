"""Which handler a path belongs to; one matcher for HTTP routes and WebSocket endpoints.

A path is split at its slashes first and percent-decoded afterwards, once, segment by segment: an
encoded slash stays inside its parameter and a decoded percent sign is never decoded again.
"""

from collections.abc import Mapping
from typing import Generic, TypeVar
from urllib.parse import unquote_to_bytes

T = TypeVar("T")

_REMEMBERED_PATHS = 4096
_REMEMBERED_BYTES = 512
"""Paths remembered, and the longest of them: two megabytes at most."""


class _Node(Generic[T]):
    """One segment of the registered templates."""

    __slots__ = ("fixed", "name", "parameter", "template", "value")

    def __init__(self) -> None:
        self.fixed: dict[str, _Node[T]] = {}
        self.parameter: _Node[T] | None = None
        self.name = ""
        """The parameter that leads here, when this node is its parent's `parameter`."""
        self.template: str | None = None
        """The template that ends here, if one does; `value` is set with it."""
        self.value: T


class Paths(Generic[T]):
    """Path templates such as `/app/{key}` and what each stands for."""

    def __init__(self) -> None:
        self._root: _Node[T] = _Node()
        self._recent: dict[bytes, tuple[T, Mapping[str, str]]] = {}

    def add(self, template: str, value: T) -> None:
        """Register a template.

        Raises:
            ValueError: The template is malformed, or a registered one matches the same paths.
        """
        if not template.startswith("/"):
            raise ValueError(f"path template {template!r} must start with a slash")
        node = self._root
        names: set[str] = set()
        for segment in template[1:].split("/"):
            if segment.startswith("{") and segment.endswith("}"):
                name = segment[1:-1]
                if not name.isidentifier() or name in names:
                    raise ValueError(f"path template {template!r}: bad parameter {segment!r}")
                names.add(name)
                if node.parameter is None:
                    node.parameter = _Node()
                    node.parameter.name = name
                elif node.parameter.name != name:
                    raise ValueError(
                        f"path template {template!r}: this segment is already named "
                        f"{node.parameter.name!r}"
                    )
                node = node.parameter
            elif "{" in segment or "}" in segment:
                raise ValueError(f"path template {template!r}: a parameter is a whole segment")
            else:
                node = node.fixed.setdefault(segment, _Node())
        if node.template is not None:
            raise ValueError(f"path template {template!r} is already registered")
        node.template = template
        node.value = value

    def find(self, raw_path: bytes) -> tuple[T, Mapping[str, str]] | None:
        """As `_find`, remembering the paths that come again and again, such as a stream's."""
        found = self._recent.get(raw_path)
        if found is None:
            found = self._find(raw_path)
            if found is not None and len(raw_path) <= _REMEMBERED_BYTES:
                if len(self._recent) >= _REMEMBERED_PATHS:
                    self._recent.clear()
                self._recent[raw_path] = found
        return found

    def _find(self, raw_path: bytes) -> tuple[T, dict[str, str]] | None:
        """The value and the decoded parameters for a path as received; None if no template fits.

        A fixed segment wins over a parameter. A parameter is never empty. A path that is not
        percent-encoded UTF-8 fits nothing.
        """
        if not raw_path.startswith(b"/"):
            return None
        try:
            segments = [
                (unquote_to_bytes(part) if b"%" in part else part).decode()
                for part in raw_path[1:].split(b"/")
            ]
        except UnicodeDecodeError:
            return None
        return self._descend(self._root, segments, 0)

    def _descend(
        self, node: _Node[T], segments: list[str], depth: int
    ) -> tuple[T, dict[str, str]] | None:
        """Depth-first over at most two branches per level; no deeper than the longest template."""
        if depth == len(segments):
            return None if node.template is None else (node.value, {})
        segment = segments[depth]
        fixed = node.fixed.get(segment)
        if fixed is not None:
            found = self._descend(fixed, segments, depth + 1)
            if found is not None:
                return found
        if node.parameter is not None and segment:
            found = self._descend(node.parameter, segments, depth + 1)
            if found is not None:
                found[1][node.parameter.name] = segment
                return found
        return None
