"""Print the commands of README.md that stand under a marker, so that CI runs what the README says.

A marker is an HTML comment, `<!-- command: set-up -->`, in front of a shell block:

    python .ci/readme_command.py set-up
    python .ci/readme_command.py set-up --venv .ci-venv    # the same, in an environment of that name
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

README = Path(__file__).resolve().parent.parent / "README.md"
README_VENV = ".venv"


def find_commands(text: str, name: str) -> list[str]:
    """Return the lines of the shell block that the marker ``name`` stands in front of, without blanks and comments.

    Raises:
        LookupError: there is no such marker, or more than one.
    """
    blocks = re.findall(rf"<!-- command: {re.escape(name)} -->\s*```bash\n(.*?)```", text, flags=re.DOTALL)
    if len(blocks) != 1:
        raise LookupError(f"expected one shell block marked {name!r} in README.md, but found {len(blocks)}")
    lines = (line.strip() for line in blocks[0].splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def replace_venv(command: str, venv: str) -> str:
    """Return the command with the README's environment folder replaced by ``venv``."""
    return re.sub(rf"(?<![\w.]){re.escape(README_VENV)}(?![\w.])", venv, command)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", help="the marker: set-up, train, quick or test")
    parser.add_argument("--venv", default=README_VENV, help="folder to use for the environment")
    arguments = parser.parse_args()
    try:
        commands = find_commands(README.read_text(encoding="utf-8"), arguments.name)
    except LookupError as error:
        print(error, file=sys.stderr)
        return 1
    print("\n".join(replace_venv(command, arguments.venv) for command in commands))
    return 0


if __name__ == "__main__":
    sys.exit(main())
