"""Everything that the pages show is run: Python blocks, commands, the README's own set-up lines, and links."""

from __future__ import annotations

import importlib.util
import itertools
import re
import shlex
import warnings
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest

from lightning_accum.cli.config import make_config
from lightning_accum.cli.main import main

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
PAGES = [README, ROOT / "CONTRIBUTING.md", ROOT / "benchmarks" / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


@dataclass(frozen=True)
class Block:
    """A fenced block of a page, and what the ``text`` block right below it says it prints."""

    page: Path
    line: int
    language: str
    code: str
    output: str | None = None

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def find_blocks(page: Path, language: str) -> list[Block]:
    pattern = re.compile(r"^```(\w+)\n(.*?)^```$(?:\n+```text\n(.*?)^```$)?", flags=re.DOTALL | re.MULTILINE)
    text = page.read_text(encoding="utf-8")
    return [
        Block(page, text.count("\n", 0, found.start(2)) + 1, found[1], found[2], found[3])
        for found in pattern.finditer(text)
        if found[1] == language
    ]


def find_commands(program: str) -> list[tuple[Block, list[str]]]:
    """Return every command of the pages' shell blocks that calls ``program``, as its arguments."""
    lines = ((block, line) for page in PAGES for block in find_blocks(page, "bash") for line in block.code.splitlines())
    commands = [(block, shlex.split(line, comments=True)) for block, line in lines]
    return [(block, command[1:]) for block, command in commands if command[:1] == [program]]


def load_readme_command() -> ModuleType:
    spec = importlib.util.spec_from_file_location("readme_command", ROOT / ".ci" / "readme_command.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


PYTHON = [block for page in PAGES for block in find_blocks(page, "python")]


@pytest.mark.parametrize("block", PYTHON, ids=str)
def test_python_block_run_alone_prints_what_the_page_says(block, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    padding = "\n" * (block.line - 1)  # so that a traceback names the page's own line
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        exec(compile(padding + block.code, str(block.page), "exec"), {"__name__": "__main__"})
    assert not [str(warning.message) for warning in told if "lightning_accum" in warning.filename]
    if block.output is not None:
        assert capsys.readouterr().out.split()[-len(block.output.split()) :] == block.output.split()


def test_pages_have_python_blocks():
    assert len(PYTHON) >= 6
    assert any(block.output for block in PYTHON)


def test_readme_set_up_is_two_commands_that_make_and_fill_an_environment():
    commands = load_readme_command()
    make, install = commands.find_commands(README.read_text(encoding="utf-8"), "set-up")
    assert make.startswith("python -m venv .venv")
    assert install.startswith("pip install -e ")
    assert commands.replace_venv(make, ".ci-venv") == make.replace(".venv", ".ci-venv")
    assert commands.replace_venv(install, ".ci-venv") == install


@pytest.mark.parametrize(
    ("name", "start"), [("train", "lightning-accum train"), ("quick", "lightning-accum train"), ("test", "pytest")]
)
def test_readme_marked_command_is_a_single_line(name, start):
    (command,) = load_readme_command().find_commands(README.read_text(encoding="utf-8"), name)
    assert command.startswith(start)


def test_readme_command_unknown_marker_raises():
    with pytest.raises(LookupError, match="'nothing'"):
        load_readme_command().find_commands(README.read_text(encoding="utf-8"), "nothing")


def find_subcommands(name: str) -> list:
    """Return the pages' ``lightning-accum <name> ...`` commands as test parameters."""
    found = find_commands("lightning-accum")
    return [pytest.param(rest[1:], id=f"{block}-{' '.join(rest)}") for block, rest in found if rest[:1] == [name]]


@pytest.mark.parametrize("arguments", find_subcommands("train"))
def test_train_command_of_a_page_composes(arguments):
    overrides = [argument for argument in arguments if not argument.startswith("-")]
    choices = [override.split("=", 1) for override in overrides]
    jobs = itertools.product(*([f"{key}={value}" for value in values.split(",")] for key, values in choices))
    for job in jobs if "-m" in arguments else [overrides]:
        assert make_config(list(job)).accumulation.schedule


@pytest.mark.parametrize("arguments", find_subcommands("preview"))
def test_preview_command_of_a_page_draws_its_picture(arguments, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["preview", *arguments]) == 0
    assert (tmp_path / "preview.png").exists()


def test_pages_call_every_command_and_no_other():
    called = {rest[0] for _, rest in find_commands("lightning-accum")}
    assert called == {"train", "preview"}
    for command in sorted(called):
        with pytest.raises(SystemExit) as end:
            main([command, "--help"])
        assert end.value.code in (0, None)


@pytest.mark.parametrize("command", [rest for _, rest in find_commands("python")], ids=" ".join)
def test_python_command_of_a_page_names_a_file_or_module(command):
    assert command[0] == "-m" or (ROOT / command[0]).is_file()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_page_relative_links_lead_to_files(page):
    targets = re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text(encoding="utf-8"))
    missing = [target for target in targets if "://" not in target and not (page.parent / target).exists()]
    assert not missing
