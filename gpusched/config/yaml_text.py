"""Parse YAML into nodes, which keep each value as text and know their positions."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import yaml


class InvalidYaml(ValueError):
    """A text that is not YAML. `line` and `column` count from 0; `line` is -1 if no position is known."""

    def __init__(self, problem: str, line: int = -1, column: int = 0) -> None:
        super().__init__(problem)
        self.line = line
        self.column = column


_PLAIN_LINE = re.compile(rb"(?:([A-Za-z][\w-]*):[ ]+([\w./][\w./-]*)[ ]*)?(?:(?<![^ ])#[ -~]*)?")


def plain_pairs(data: bytes) -> list[tuple[int, str, str]] | None:
    """Return line, key and value of a mapping of plain words; None for all other YAML, which needs the library.

    Most files with settings are so plain, and the library takes longer to load than a submission takes.
    """
    lines = [_PLAIN_LINE.fullmatch(line) for line in data.split(b"\n")]
    if not all(lines):
        return None
    pairs = ((number, line[1], line[2]) for number, line in enumerate(lines, 1) if line is not None and line[1])
    return [(number, key.decode(), value.decode()) for number, key, value in pairs]


def compose(data: bytes) -> yaml.Node | None:
    """Return the root of a file; None for an empty one. Raises InvalidYaml."""
    import yaml

    from gpusched.common.text_input import check_text

    try:
        check_text(data)
    except ValueError as error:
        raise InvalidYaml(str(error)) from None
    loader: type[Any] = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
    try:
        return yaml.compose(data, Loader=loader)
    except UnicodeDecodeError:
        raise InvalidYaml("this file is not UTF-8") from None
    except RecursionError:
        raise InvalidYaml("this is nested too deeply") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or getattr(error, "reason", None) or "it cannot be read"
        position = (mark.line, mark.column) if mark is not None else ()
        raise InvalidYaml(f"this is not YAML: {problem}", *position) from None


def kind(node: yaml.Node) -> str:
    return {"scalar": "text", "sequence": "list", "mapping": "map"}[getattr(node, "id", "scalar")]


def is_scalar(node: yaml.Node) -> bool:
    return kind(node) == "text"
