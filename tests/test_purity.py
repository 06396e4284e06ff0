"""Pure modules are importable where Lightning, and for most of them torch, is not there."""

import subprocess
import sys

import pytest

LIGHTNING = ["lightning", "pytorch_lightning", "lightning_fabric"]

# The package's own __init__ offers the callback and so needs Lightning; a stand-in for it leaves only the module asked.
PROGRAM = """
import importlib, importlib.util, sys, types

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {blocked!r}:
            raise ImportError(name + " is blocked")

sys.meta_path.insert(0, Blocker())
package = types.ModuleType("lightning_accum")
package.__path__ = importlib.util.find_spec("lightning_accum").submodule_search_locations
sys.modules["lightning_accum"] = package
for module in {modules!r}:
    importlib.import_module("lightning_accum." + module)
"""


def import_without(blocked, modules):
    program = PROGRAM.format(blocked=blocked, modules=modules)
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize(
    ("blocked", "modules"),
    [
        ([*LIGHTNING, "torch", "matplotlib"], ["errors", "progress", "schedules", "window", "simulation", "preview"]),
        (LIGHTNING, ["counting", "weighting", "state"]),
    ],
    ids=["without_torch", "without_lightning"],
)
def test_pure_modules_are_imported_without_what_they_must_not_need(blocked, modules):
    result = import_without(blocked, modules)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize(("blocked", "module"), [(LIGHTNING, "callback"), (["torch"], "counting")])
def test_blocked_import_is_noticed(blocked, module):
    result = import_without(blocked, [module])
    assert result.returncode == 1
    assert "is blocked" in result.stderr
