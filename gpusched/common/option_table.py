"""Options as fields of a dataclass: one table, from which command line, arguments of a stage and docs are made."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, fields, replace
from itertools import chain
from typing import TYPE_CHECKING, Any

from gpusched.common.errors import GpuschedError

if TYPE_CHECKING:
    from argparse import ArgumentParser

_KEY = "option"  # of the metadata of a field


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """The description of one option. `help` is a sentence; `check` raises ValueError for an invalid value."""

    help: str
    metavar: str = ""
    choices: tuple[str, ...] = ()
    least: float | None = None
    check: Callable[[Any], object] | None = None
    default_text: str = ""  # for people, where the default alone does not say it
    is_optional: bool = False  # its value: the option alone is True
    short: str = ""  # a second flag, such as -o
    spelt: str = ""  # its flag, where that is not its name
    takes: type | None = None  # the type of its values, if not that of the default
    name: str = ""
    default: Any = None

    @property
    def flag(self) -> str:
        """The option that changes the default. A switch that is on by default is turned off by `--no-…`."""
        return self.spelt or f"--{'no-' if self.default is True else ''}{self.name.replace('_', '-')}"

    @property
    def flags(self) -> list[str]:
        return [self.flag, *([self.short] if self.short else [])]

    @property
    def value_type(self) -> type:
        return self.takes or (str if self.default is None else type(self.default))

    @property
    def full_help(self) -> str:
        """The help with the default, where there is one to be told."""
        default = self.default_text or (f"{self.default:g}" if isinstance(self.default, float) else self.default)
        return f"{self.help}  [default: {default}]" if default and default is not True else self.help

    def problem(self, value: Any) -> str:
        """Return why a value is invalid; an empty string if it is valid, as the default is."""
        if value == self.default:
            return ""
        if self.choices and value not in self.choices:
            return f"must be one of {', '.join(self.choices)}"
        if self.least is not None and (isinstance(value, str) or not self.least <= value < math.inf):
            return f"must be a {'whole ' if self.value_type is int else ''}number, at least {self.least:g}"
        try:
            if self.check is not None and value:
                self.check(value)
        except ValueError as error:
            return f"must be {error}"
        return ""


def option(default: Any, help: str, *, kind: type[Option] = Option, **details: Any) -> Any:
    """Return a dataclass field with this default that is an option; `details` are fields of `kind`."""
    return field(default=default, metadata={_KEY: kind(help=help, **details)})


def options_of(kind: type) -> Iterator[Any]:
    """Yield the options of a dataclass with the names and defaults of their fields, those of its base class last."""
    own = inspect.get_annotations(kind)
    for each in sorted(fields(kind), key=lambda each: each.name not in own):
        if _KEY in each.metadata:
            yield replace(each.metadata[_KEY], name=each.name, default=each.default)


def check_values(values: object) -> None:
    """Raise GpuschedError for the first option of a dataclass whose value is invalid."""
    for each in options_of(type(values)):
        value = getattr(values, each.name)
        if problem := each.problem(value):
            shown = " ".join(value) if isinstance(value, tuple) else value
            raise GpuschedError(problem, where=f"{each.flag} {shown}")


def add_arguments(parser: ArgumentParser, kind: type) -> None:
    """Give the parser of a stage the options of the dataclass `kind`. One that may be repeated has a list of values."""
    for each in options_of(kind):
        more: dict[str, Any] = {"dest": each.name, "default": each.default, "help": each.full_help}
        if each.is_optional:
            more |= {"nargs": "?", "const": True, "metavar": each.metavar}
        elif isinstance(each.default, bool):
            more |= {"action": "store_false" if each.default else "store_true"}
        elif isinstance(each.default, tuple):
            more |= {"action": "append", "default": [], "metavar": each.metavar}
        else:
            more |= {"type": each.value_type, "choices": each.choices or None, "metavar": each.metavar or None}
        parser.add_argument(*each.flags, **more)


def words_of(values: object, rows: Iterable[Option]) -> list[str]:
    """Return those of these options that differ from their default in `values`, as words of a command line."""
    words: list[str] = []
    for each in rows:
        value = getattr(values, each.name)
        if value != each.default and isinstance(value, bool):
            words.append(each.flag)
        elif value != each.default:
            words += chain(*(option_words(each.flag, one) for one in (value if isinstance(value, tuple) else (value,))))
    return words


def option_words(flag: str, value: object) -> list[str]:
    """Return an option and its value as words of a command line, one word if the value begins with a dash."""
    text = str(value)
    return [f"{flag}={text}"] if text.startswith("-") else [flag, text]


def with_dashes(word: str) -> str:
    """Return an option that is written with underscores as it is called: `--model_list` -> `--model-list`."""
    flag, equals, value = word.partition("=")
    return flag.replace("_", "-") + equals + value if word.startswith("--") else word
