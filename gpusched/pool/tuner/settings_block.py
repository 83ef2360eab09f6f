"""The `optimization:` block of a pool's YAML file. Every byte outside of it stays as it is."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from io import StringIO
from typing import Any

from gpusched.common.errors import GpuschedError
from gpusched.pool.config import BLOCK

MEASURED = "# measured "  # begins the comment that says where and when


def replace_block(text: str, path: Sequence[str], values: Mapping[str, Any], measured: str) -> tuple[str, list[str]]:
    """Return the text with `values` in the block below the keys `path`, and the keys that were left alone.

    In the block, comments and keys of others stay, and so does a value that refers to another place (`${...}`).
    A block that is not there is added at the end of the mapping that `path` names. Raises GpuschedError where the text
    is no YAML, where `path` leads to no mapping, or where two lines after the change would not say what was meant.
    """
    lines = text.splitlines(keepends=True)
    if lines and not lines[-1].endswith("\n"):
        lines[-1] += "\n"
    begin, end, indent = _find_block(lines, path)
    old = "".join(line[indent:] if line.strip() else line for line in lines[begin:end])
    block, kept = _update(old, values, measured)
    if "\r\n" in text:
        block = block.replace("\n", "\r\n")
    lines[begin:end] = [" " * indent + line if line.strip() else line for line in block.splitlines(keepends=True)]
    new = "".join(lines)
    _check(new, path, values, kept)
    return new, kept


def _find_block(lines: Sequence[str], path: Sequence[str]) -> tuple[int, int, int]:
    """Return the first line of the block, the line behind it, and its indent; an empty range where it would belong."""
    node: Any = _load("".join(lines)) or {}
    begin, end, indent = 0, len(lines), 0
    for key in path:
        if not isinstance(node.get(key), Mapping):
            raise GpuschedError(
                f'"{".".join(path)}" is no mapping there', hint="describe the pool below that name first"
            )
        line, column = node.lc.key(key)
        end = _end_of(lines, line, column)
        node, begin = node[key], line + 1
        indent = node.lc.col
        if node.fa.flow_style():
            raise GpuschedError(f'"{key}" is written in braces', hint="write its keys on lines of their own")
    if BLOCK in node:
        line, column = node.lc.key(BLOCK)
        return line, _end_of(lines, line, column), column
    while end > begin and not lines[end - 1].strip():
        end -= 1
    return end, end, indent


def _end_of(lines: Sequence[str], line: int, column: int) -> int:
    """Return the line behind a key and its value: as far as lines are indented more than the key."""
    end = line + 1
    for number in range(line + 1, len(lines)):
        content = lines[number].strip()
        if not content:
            continue
        indent = len(lines[number]) - len(lines[number].lstrip())
        if indent <= column and not content.startswith(("- ", "-\n")):
            break
        end = number + 1
    return end


def _update(old: str, values: Mapping[str, Any], measured: str) -> tuple[str, list[str]]:
    """Return a block with the values set, and the keys whose value refers to another place."""
    old = "".join(line for line in old.splitlines(keepends=True) if not line.strip().startswith(MEASURED))
    document = _load(old) if old else None
    if document is None or document.get(BLOCK) is None:
        document = _load(f"{BLOCK}: {{}}\n")
    block = document[BLOCK]
    block.fa.set_block_style()
    kept = [key for key, value in values.items() if "${" in str(block.get(key, ""))]
    for key, value in values.items():
        if key in kept:
            continue
        if isinstance(value, Mapping) and isinstance(block.get(key), Mapping):
            for name, each in value.items():
                block[key].setdefault(name, each)
        else:
            block[key] = value
    out = StringIO()
    _yaml().dump(document, out)
    first, _, rest = out.getvalue().partition("\n")
    return f"{first}\n  {MEASURED}{measured}\n{rest}", kept


def _check(text: str, path: Sequence[str], values: Mapping[str, Any], kept: Sequence[str]) -> None:
    """Read the new text as `gpusched pool` would, so that no file is written that says something else."""
    node = _load(text)
    for key in (*path, BLOCK):
        node = node[key]
    if any(node[key] != value for key, value in values.items() if key not in kept and not isinstance(value, Mapping)):
        raise GpuschedError(f'the block "{BLOCK}" could not be written into this file', hint="write it by hand")


def _yaml() -> Any:
    from ruamel.yaml import YAML

    yaml = YAML(typ="rt")
    yaml.preserve_quotes = True
    yaml.width = 1 << 16
    return yaml


def _load(text: str) -> Any:
    from ruamel.yaml.error import YAMLError

    try:
        return _yaml().load(text)
    except YAMLError as error:
        problem = re.sub(r"\s+", " ", str(getattr(error, "problem", None) or error))
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}: " if mark else ""
        raise GpuschedError(f"{where}{problem}", hint="correct the YAML") from None
