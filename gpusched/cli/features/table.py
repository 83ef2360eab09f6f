"""Options of a command from the table of a dataclass, as `gpusched esd` and `gpusched pool` have them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import click

from gpusched.cli.options import F, SettingsCommand
from gpusched.common.option_table import Option, options_of, with_dashes


def table_options(kind: type) -> Callable[[F], F]:
    """Return a decorator that gives a command the options of the dataclass `kind`."""
    return row_options(list(options_of(kind)))


def row_options(rows: Sequence[Option]) -> Callable[[F], F]:
    """Return a decorator that gives a command these options."""

    def decorate(callback: F) -> F:
        for each in reversed(rows):
            callback = _click_option(each)(callback)
        return callback

    return decorate


def _click_option(each: Option) -> Callable[[F], F]:
    if each.is_optional:
        is_true_alone: dict[str, Any] = {"is_flag": False, "flag_value": True, "default": False}
        return click.option(
            *each.flags, each.name, **is_true_alone, type=click.UNPROCESSED, metavar=f"[{each.metavar}]", help=each.help
        )
    if isinstance(each.default, bool):
        is_off = each.default  # the flag turns it off
        return click.option(
            *each.flags, each.name, is_flag=True, help=each.help, callback=lambda context, parameter, on: on != is_off
        )
    is_list = isinstance(each.default, tuple)
    return click.option(
        *each.flags,
        each.name,
        multiple=is_list,
        type=click.Choice(each.choices, case_sensitive=False) if each.choices else str if is_list else each.value_type,
        metavar="|".join(each.choices) or each.metavar,
        default=each.default,
        help=each.full_help,
    )


class TableCommand(SettingsCommand):
    """The command with its options, which may be written with underscores."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, [with_dashes(word) for word in args])
