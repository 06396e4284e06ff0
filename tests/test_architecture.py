"""Imports run one way, and the pure modules know nothing of Lightning."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

tomllib = pytest.importorskip("tomllib", reason="Python 3.11 reads TOML itself")

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "lightning_accum"

HOUSE = ROOT / "docs" / "architecture.md"


def find_layers() -> list[set[str]]:
    """Return the parts of the package, line by line, as docs/architecture.md lists them."""
    text = HOUSE.read_text(encoding="utf-8")
    (house,) = re.findall(r"^```text\nlightning_accum/\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)
    lines = [line for line in house.splitlines() if line.startswith("  ")]
    return [
        {name.removesuffix(".py").removesuffix("/") for name in re.findall(r"\S+(?:\.py|/)(?=\s)", line)}
        for line in lines
    ]


LAYERS = find_layers()


def find_modules() -> list[Path]:
    return [path for path in sorted(PACKAGE.rglob("*.py")) if "__pycache__" not in path.parts]


def name_part(path: Path) -> str:
    """Return the part of the package that a file belongs to."""
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def find_imported_parts(path: Path) -> set[str]:
    """Return the parts of the package that a file imports, type checking left out."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    skipped = {
        id(node)
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
        for node in ast.walk(block)
    }
    parts = set()
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("lightning_accum"):
            _, _, rest = node.module.partition(".")
            parts |= {rest.split(".")[0]} if rest else {part_of_name(alias.name) for alias in node.names}
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names if alias.name.startswith("lightning_accum")]
            parts |= {name.split(".")[1] if "." in name else "__init__" for name in names}
    return parts


def part_of_name(name: str) -> str:
    """Return the part that ``from lightning_accum import name`` reads: a module, or a public name."""
    return name if (PACKAGE / name).exists() or (PACKAGE / f"{name}.py").exists() else "__init__"


def find_layer(part: str) -> int:
    found = [index for index, parts in enumerate(LAYERS) if part in parts]
    assert len(found) == 1, f"lightning_accum/{part} must stand on one line of the list in {HOUSE.name}"
    return found[0]


def find_pure_modules() -> list[str]:
    """Return the modules that pyproject.toml holds to mypy's strict rules: the pure ones."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    (strict,) = [o["module"] for o in settings["tool"]["mypy"]["overrides"] if o.get("disallow_untyped_defs")]
    return [name.removesuffix(".*") for name in strict]


@pytest.mark.parametrize("path", find_modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_module_imports_only_from_layers_below(path):
    part = name_part(path)
    upward = {other for other in find_imported_parts(path) - {part} if find_layer(other) > find_layer(part)}
    assert not upward


def test_pure_modules_are_imported_without_lightning():
    names = find_pure_modules()
    assert len(names) >= 6
    code = "\n".join([
        "import sys, types",
        "for name in ('lightning', 'lightning.pytorch', 'pytorch_lightning'): sys.modules[name] = None",
        "package = types.ModuleType('lightning_accum')",  # its __init__ names the callback
        f"package.__path__ = [{str(PACKAGE)!r}]",
        "sys.modules['lightning_accum'] = package",
        *(f"import {name}" for name in names),
    ])  # fmt: skip
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_schedules_are_imported_without_torch():
    code = "\n".join([
        "import sys, types",
        "sys.modules['torch'] = sys.modules['lightning'] = None",
        "package = types.ModuleType('lightning_accum')",
        f"package.__path__ = [{str(PACKAGE)!r}]",
        "sys.modules['lightning_accum'] = package",
        "import lightning_accum.schedules, lightning_accum.window, lightning_accum.preview",
    ])  # fmt: skip
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("path", find_modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_private_names_of_lightning_are_used_in_one_module_only(path):
    if name_part(path) == "_lightning":
        return
    tree = ast.parse(path.read_text(encoding="utf-8"))
    private = [
        ast.unparse(node)
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and node.attr.startswith("_")
        and not node.attr.startswith("__")
        and any(word in ast.unparse(node.value).split(".") for word in ("trainer", "fit_loop", "epoch_loop"))
    ]
    assert not private
