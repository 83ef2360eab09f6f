"""Combine the values of parameters: ranges, products, rows of a table. Knows no command.

Values are always text: 010 stays 010, and 1e-3 is not 0.001.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from math import prod
from typing import NamedTuple

MAX_JOBS = 1_000_000

_NUMBER = r"[+-]?\d{1,15}(?:\.\d{1,12})?"
_TOKEN = re.compile(r"""(?<![^\s\[({,:=])(?:"(?:[^"]|"")*"|'[^']*')|.""", re.DOTALL)  # a quoted text, or a character
_RANGE = re.compile(r"range\(\s*(-?\d+(?:\s*,\s*-?\d+)?(?:\s*,\s*-?[1-9]\d*)?)\s*\)")
_FLAT = re.compile(r"[\[(]([^][(){}]+)[\])]")  # a list in Python, of no lists
_QUOTING = 'put a value with a single bracket in double quotes: "…"'
_DASHED = re.compile(rf"({_NUMBER})-({_NUMBER})")
_HALF = re.compile(rf"{_NUMBER}\.\.|\.\.{_NUMBER}")
_SPAN = re.compile(rf"({_NUMBER})\.\.({_NUMBER})(?:\.\.({_NUMBER}))?")


class Axis(NamedTuple):
    """Parameters that are set together: each row has one value for each of them."""

    names: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def span(text: str) -> list[str] | None:
    """Return the values of `0..4` or `0..1..0.25`, both ends included; None for other text. ValueError for too many."""
    match = _SPAN.fullmatch(text)
    if match is None:
        return None
    from decimal import Decimal

    first, last = Decimal(match[1]), Decimal(match[2])
    step = abs(Decimal(match[3])) if match[3] else Decimal(1)
    if not step:
        raise ValueError(f"{text} goes nowhere: its step is 0")
    if abs(last - first) / step >= MAX_JOBS:
        raise ValueError(f"{text} is more than {MAX_JOBS:,} values")
    places = max(len(part.partition(".")[2]) for part in match.groups(default=""))
    form = f".{places}f"
    if any(map(_padded, match.groups()[:2])):
        form = f"0{max(map(len, match.groups()[:2]))}{form}"
    count = int(abs(last - first) / step) + 1
    step = step if last >= first else -step
    return [format(first + n * step, form) for n in range(count)]


def _padded(number: str) -> bool:
    return len(number.partition(".")[0].lstrip("+-")) > 1 and number.lstrip("+-").startswith("0")


def parameter(text: str) -> Axis:
    """Parse the values of one parameter: `lr=1e-3,1e-4`, `seed=0..4,9`, `name="a,b",c`. ValueError for other text."""
    name, equals, values = text.partition("=")
    if not equals or not re.fullmatch(r"[A-Za-z_][\w.-]*", name):
        raise ValueError("a parameter is NAME=VALUE,VALUE or NAME=FIRST..LAST")
    parsed = [each for value in _split(name, values) for each in _expand(name, value)]
    if not parsed:
        raise ValueError(f"{name} has no values")
    return Axis((name,), tuple((value,) for value in parsed))


def _split(name: str, text: str) -> list[str]:
    """Return the values between commas, but for those within brackets and quotes. Raises ValueError."""
    values, brackets = [""], ""  # those that are open
    for token in _TOKEN.findall(text):
        if token == "," and not brackets:
            values.append("")
            continue
        if token in "[({":
            brackets += token
        elif token in "])}" and brackets[-1:] + token not in ("[]", "()", "{}"):
            raise ValueError(f"{token} closes nothing in the values of {name}: {_QUOTING}")
        elif token in "])}":
            brackets = brackets[:-1]
        values[-1] += token
    if brackets:
        raise ValueError(f"{brackets[-1]} is not closed in the values of {name}: {_QUOTING}")
    if text and not values[-1].strip():
        raise ValueError(f'the values of {name} end in a comma: leave it out, or write "" for an empty value')
    return [value.lstrip() for value in values if text]


def _expand(name: str, text: str) -> list[str]:
    """Return the values of one text between commas: those of a range, or its own. Raises ValueError."""
    if text[:1] == '"':  # double quotes are those of a table
        import csv

        try:
            return next(csv.reader([text], strict=True))[:1]
        except csv.Error as error:
            raise ValueError(f"the values of {name} cannot be read: {error}") from None
    return expand(text, f"write -p {name}={{}}, or -p '{name}=\"{text}\"' for the text")


def expand(text: str, remedy: str) -> list[str]:
    """Return the values of a range such as 0..4, or the text itself.

    Raises ValueError for `0-4`, which may be either, and for `0..`; `remedy` says what to write, with {} for the range.
    """
    if match := _DASHED.fullmatch(text):
        raise ValueError(f"{text} may be a range or a text: {remedy.format(f'{match[1]}..{match[2]}')}")
    if _HALF.fullmatch(text):
        raise ValueError(f"{text} is half a range: {remedy.format('FIRST..LAST')}")
    return span(text) or [text]


def several(axis: Axis) -> str:
    """Return how to write the values of a parameter that has one, which looks like several in Python; else nothing."""
    value = axis.rows[0][0] if len(axis.rows) == 1 else ""
    if match := _RANGE.fullmatch(value):
        numbers = range(*map(int, match[1].split(",")))
        step = f"..{abs(numbers.step)}" if abs(numbers.step) > 1 else ""
        return f"{numbers[0]}..{numbers[-1]}{step}" if numbers else ""
    inner = _FLAT.fullmatch(value)
    return re.sub(r"[\s'\"]", "", inner[1]) if inner else ""


def table(data: bytes, notes: list[str]) -> Axis:
    """Parse a CSV file: its header names the parameters, each row sets them. ValueError for a table of another form.

    A column without a name is ignored, and so is a row of empty cells.
    """
    from gpusched.common.text_input import read_table

    rows = [row.cells for row in read_table(data, notes) if any(map(str.strip, row.cells))]
    if len(rows) < 2:
        raise ValueError("it has no rows below a line that names the columns")
    names = [cell.strip() for cell in rows[0]]
    columns = [n for n, name in enumerate(names) if name]
    return Axis(tuple(names[n] for n in columns), tuple(tuple(row[n] for n in columns) for row in rows[1:]))


def count(axes: Sequence[Axis]) -> int:
    """Return the number of combinations."""
    return prod(len(axis.rows) for axis in axes)


def combinations(axes: Sequence[Axis]) -> Iterator[dict[str, str]]:
    """Yield all combinations; the last axis changes fastest."""
    names = [name for axis in axes for name in axis.names]
    for rows in itertools.product(*(axis.rows for axis in axes)):
        yield dict(zip(names, itertools.chain.from_iterable(rows), strict=True))


def matches(values: Mapping[str, str], pattern: Mapping[str, Collection[str]]) -> bool:
    """Return True if each parameter of the pattern has one of its values."""
    return all(values[name] in allowed for name, allowed in pattern.items())
