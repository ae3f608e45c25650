"""The hooks for pre-commit: what the lint tier runs, from this clone, with nothing fetched."""

import os
import shlex
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]


def test_hooks_are_programs_of_this_clone() -> None:
    """Every hook is local and can be run, and those of the lint tier are all there."""
    configured = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
    assert [repository["repo"] for repository in configured["repos"]] == ["local"]
    hooks = [hook for repository in configured["repos"] for hook in repository["hooks"]]
    assert {hook["language"] for hook in hooks} == {"system"}
    programs = [shlex.split(hook["entry"])[0] for hook in hooks]
    assert [name for name in programs if not os.access(ROOT / name, os.X_OK)] == []
    assert {Path(name).name for name in programs} == {"ruff", "mypy", "lint-imports", "generate"}
