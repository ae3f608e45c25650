"""The npm package of the client for pages: what it holds, its size, and its types."""

import gzip
import json
import re
import subprocess
from pathlib import Path

import pytest

import tidelog
from support import node

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "clients" / "js"
COPY = ROOT / "src" / "tidelog" / "web" / "static" / "tidelog.js"
MAX_BYTES = 12_000
"""Of the module, minified and compressed."""
SECONDS = 120.0


def run(*command: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """A command of Node's, which must end in time."""
    return subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, timeout=SECONDS, check=False
    )


def test_the_server_serves_the_package_s_own_file() -> None:
    """One source: the copy that the wheel ships has the same bytes."""
    assert COPY.read_bytes() == (PACKAGE / "tidelog.js").read_bytes()


def test_the_package_holds_what_it_needs_and_no_more() -> None:
    """Npm would publish the module, its types and how to use it; it has no dependencies."""
    _, npm = node.programs()
    packed = run(*npm, "pack", "--dry-run", "--json", "--ignore-scripts", cwd=PACKAGE)
    assert packed.returncode == 0, packed.stderr
    [described] = json.loads(packed.stdout)
    assert {file["path"] for file in described["files"]} == {
        *("LICENSE", "README.md", "package.json", "tidelog.d.ts", "tidelog.js")
    }
    package = json.loads((PACKAGE / "package.json").read_text(encoding="utf-8"))
    assert not [key for key in package if "ependencies" in key or key == "scripts"]
    assert package["version"] == re.sub(r"\.dev(\d+)$", r"-dev.\1", tidelog.__version__)
    assert (PACKAGE / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()


def test_the_module_is_small_and_stands_alone() -> None:
    """At most 12 kB minified and compressed; it imports nothing."""
    program, _ = node.programs()
    home = node.tidelog_js_home()
    source = (PACKAGE / "tidelog.js").read_text(encoding="utf-8")
    assert not re.findall(r"^import |\bimport\(|\brequire\(", source, re.MULTILINE)
    minified = run(
        *(program, str(home / "node_modules" / "esbuild" / "bin" / "esbuild")),
        *("--minify", "--format=esm", "--target=es2022", str(PACKAGE / "tidelog.js")),
    )
    assert minified.returncode == 0, minified.stderr
    size = len(gzip.compress(minified.stdout.encode(), 9))
    assert size <= MAX_BYTES
    said = (ROOT / "docs" / "howto" / "browser-client.md").read_text(encoding="utf-8")
    assert f"({round(size / 1000)} kB minified and compressed)" in said


@pytest.fixture(scope="module")
def typed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project that has installed the package."""
    project = tmp_path_factory.mktemp("typed")
    installed = project / "node_modules" / "tidelog"
    installed.mkdir(parents=True)
    for name in ("package.json", "tidelog.js", "tidelog.d.ts"):
        (installed / name).write_bytes((PACKAGE / name).read_bytes())
    return project


def test_the_types_accept_what_works_and_refuse_what_does_not(typed: Path) -> None:
    """TypeScript in its strictest form agrees with the documented use, and with no other."""
    program, _ = node.programs()
    compiler = node.tidelog_js_home() / "node_modules" / "typescript" / "bin" / "tsc"
    (typed / "typed.mts").write_bytes((node.TIDELOG_JS / "typed.mts").read_bytes())
    options = ("--strict", "--noEmit", "--module", "nodenext", "--target", "es2022")
    checked = run(program, str(compiler), *options, "--lib", "es2022,dom", "typed.mts", cwd=typed)
    assert checked.returncode == 0, checked.stdout


def test_the_types_name_what_the_module_has(typed: Path) -> None:
    """Every export, and every member of its classes that is public, is in both or in neither."""
    program, _ = node.programs()
    script = typed / "members.mjs"
    script.write_text(
        """
        import * as module from "tidelog";
        const members = ({ prototype }) => Object.getOwnPropertyNames(prototype);
        const shown = Object.entries(module).map(([name, made]) => [name, members(made)]);
        console.log(JSON.stringify(Object.fromEntries(shown)));
        """,
        encoding="utf-8",
    )
    shown = run(program, str(script), cwd=typed)
    assert shown.returncode == 0, shown.stderr
    types = (PACKAGE / "tidelog.d.ts").read_text(encoding="utf-8")
    declared = dict(
        re.findall(r"^export class (\w+)[^{]*\{(.*?)^\}", types, re.MULTILINE | re.DOTALL)
    )
    found = json.loads(shown.stdout)
    assert found.keys() == declared.keys()
    for name, members in found.items():
        for member in members:
            is_public = not member.startswith("_") and member != "constructor"
            if is_public:
                assert re.search(rf"\b{member}\b", declared[name]), f"{name}.{member}"
