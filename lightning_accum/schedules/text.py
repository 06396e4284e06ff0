"""The grammar of schedules written as text: taking strings apart, without knowing what the parts mean."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from lightning_accum.errors import expected

_PAIR: Final = re.compile(r"\s*(?P<key>[^:,]+?)\s*:\s*(?P<value>[^\s:,]+)(?P<end>\s*,|\s+(?!$)|\s*$)")
_CALL: Final = re.compile(r"(?P<name>[A-Za-z_]\w*)\s*\((?P<arguments>.*)\)", re.DOTALL)


def split_pairs(text: str, where: str) -> list[tuple[str, str]]:
    """Return the pairs of a text such as "0:1, 4:8"; commas or spaces part them.

    Raises:
        ConfigError: a text that is not made of pairs.

    Example:
        >>> split_pairs("0 steps: 1, 500 steps: 4", where="Stages(stages=...)")
        [('0 steps', '1'), ('500 steps', '4')]
        >>> split_pairs("0:1 4:8", where="PerEpoch(values=...)")
        [('0', '1'), ('4', '8')]
    """
    pairs, position = [], 0
    while position < len(text):
        found = _PAIR.match(text, position)
        if found is None or (found["end"].strip() and not text[found.end() :].strip()):
            raise expected("pairs such as '0:1, 4:8'", text, where)
        pairs.append((found["key"], found["value"]))
        position = found.end()
    return pairs


def split_call(text: str) -> tuple[str, list[str], dict[str, str]] | None:
    """Return the name, the positional and the named arguments of "name(a, b, c=d)"; None if it is no call.

    Raises:
        ConfigError: an argument that is empty, named twice, or without a name after one that has one.

    Example:
        >>> split_call("linear(8, 32, over=2000 steps)")
        ('linear', ['8', '32'], {'over': '2000 steps'})
    """
    found = _CALL.fullmatch(text)
    if found is None:
        return None
    positional: list[str] = []
    named: dict[str, str] = {}
    for argument in found["arguments"].split(",") if found["arguments"].strip() else []:
        name, equals, value = (part.strip() for part in argument.rpartition("="))
        if not value or name in named or (equals and not name) or (named and not equals):
            raise expected("arguments such as '8, 32, over=2000 steps'", argument.strip(), where=text)
        if equals:
            named[name] = value
        else:
            positional.append(value)
    return found["name"], positional, named


def split_outside_brackets(text: str, word: str) -> list[str]:
    """Return the parts of ``text`` between those occurrences of ``word`` that stand in no brackets.

    Example:
        >>> split_outside_brackets("(1 for 2 steps then 4) for 9 steps, then 8", "then")
        ['(1 for 2 steps then 4) for 9 steps, ', ' 8']
    """
    parts, start = [], 0
    for position in _find_outside_brackets(text, word):
        parts.append(text[start:position])
        start = position + len(word)
    return [*parts, text[start:]]


def strip_brackets(text: str) -> str:
    """Return ``text`` without the brackets that enclose all of it, if there are such.

    Example:
        >>> strip_brackets("(8 for 9 steps, then 16)"), strip_brackets("(1) for 2 steps, then (4)")
        ('8 for 9 steps, then 16', '(1) for 2 steps, then (4)')
    """
    text = text.strip()
    depth = 0
    for position, character in enumerate(text):
        depth += {"(": 1, ")": -1}.get(character, 0)
        if depth == 0 and position < len(text) - 1:
            return text
    return text[1:-1].strip() if text.startswith("(") and text.endswith(")") else text


def _find_outside_brackets(text: str, word: str) -> Iterator[int]:
    for found in re.finditer(rf"\b{word}\b", text):
        before = text[: found.start()]
        if before.count("(") == before.count(")"):
            yield found.start()
