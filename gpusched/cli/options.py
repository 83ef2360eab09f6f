"""The options that stand for settings, and the layers that fill them.

A command names the settings that it takes as flags; the settings table describes them. Reads no file itself.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, cast

import click

from gpusched.config import settings as config

F = TypeVar("F", bound=Callable[..., Any])

GPU_FLAGS = ("--gpu-list", *config.SETTINGS["gpu_list"].aliases)


def settings_options(*names: str) -> Callable[[F], F]:
    """Give a command the flags of these settings, and the finished settings as the argument `loaded`.

    Use it below `@click.command(cls=SettingsCommand)`; the callback gets no argument per flag.
    """

    def decorate(callback: F) -> F:
        @functools.wraps(callback)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            flags = {name: kwargs.pop(name) for name in names}
            return callback(*args, loaded=load(flags), **kwargs)

        for name in reversed(names):
            option(config.SETTINGS[name])(wrapper)
        return cast(F, wrapper)

    return decorate


def load(flags: Mapping[str, object] | None = None) -> config.LoadedSettings:
    """Load all layers of settings, and print their warnings on stderr."""
    loaded = config.load(flags)
    for warning in loaded.warnings:
        click.echo(f"gpusched: warning: {warning}", err=True)
    return loaded


def option(setting: config.Setting) -> Callable[[F], F]:
    """Return the click option of a setting. Its value stays text, since config parses the values of all layers."""
    help = f"{setting.help}.  [default: {setting.default_text()}]"
    if setting.is_switch:
        help = f"{setting.help}."
        flags = f"{setting.flag}/--no-{setting.flag[2:]}"
        return click.option(flags, setting.name, default=None, help=help)
    return click.option(
        setting.flag,
        *setting.aliases,
        setting.name,
        default=None,
        metavar=setting.metavar,
        type=click.Choice(setting.choices, case_sensitive=False) if setting.choices else click.STRING,
        help=help,
    )


class SettingsCommand(click.Command):
    """A command that also takes `--gpus 4 5 6 7`: several words after the flag."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, join_gpu_words(args))


def join_gpu_words(args: Sequence[str]) -> list[str]:
    """Return `--gpus 0,1,2 FILE` for `--gpus 0 1, 2 FILE`: the words that look like GPUs belong to the option."""
    joined: list[str] = []
    rest = list(args)
    while rest:
        word = rest.pop(0)
        flag, equals, value = word.partition("=")
        if word == "--":
            return [*joined, word, *rest]
        if flag not in GPU_FLAGS:
            joined.append(word)
            continue
        words = [value] if equals else rest[:1]
        rest = rest if equals else rest[1:]
        while rest and _looks_like_gpus(rest[0]):
            words.append(rest.pop(0))
        joined.append(flag)
        if words:
            joined.append(",".join(word.strip(",") for word in words))
    return joined


def _looks_like_gpus(word: str) -> bool:
    tokens = word.strip(",").split(",")
    return all(config.GPU_TOKEN.fullmatch(token) for token in tokens)
