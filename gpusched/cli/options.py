"""The common parts of the verbs: options made from the settings table, -q, and printing."""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from gpusched.cli.completion import complete_jobs, complete_queues
from gpusched.cli.help import GroupedCommand
from gpusched.cli.spelling import QUIET, check_queue_name, join_gpu_words, meanings
from gpusched.common.errors import GpuschedError
from gpusched.common.quantities import parse_duration, parse_moment
from gpusched.config import layers
from gpusched.config.layers import LoadedSettings
from gpusched.config.settings import SETTINGS, Setting, Settings

if TYPE_CHECKING:
    from gpusched.operations.queues import QueueDir
    from gpusched.views.tables import Line

F = TypeVar("F", bound=Callable[..., Any])
JSON_SCHEMA_VERSION = 1


def settings_options(*settings: str | Setting, show_rare: bool = False) -> Callable[[F], F]:
    """Give a command the flags of these settings, and the finished settings as the argument `loaded`.

    Use it below `@click.command(cls=SettingsCommand)`; the callback gets no argument per flag. `show_rare` lists the
    rare ones in --help too. A setting that means something else to a command is given as a whole, with its help.
    """
    table = {each.name: each for each in (SETTINGS[each] if isinstance(each, str) else each for each in settings)}

    def decorate(callback: F) -> F:
        @functools.wraps(callback)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            flags = {name: kwargs.pop(name) for name in table}
            return callback(*args, loaded=load(flags), **kwargs)

        for setting in reversed(table.values()):
            option(setting, show_rare=show_rare)(wrapper)
        return cast(F, wrapper)

    return decorate


def load(flags: Mapping[str, object] | None = None) -> LoadedSettings:
    """Return the settings of all layers. Their warnings go to stderr."""
    loaded = layers.load(flags)
    for warning in loaded.warnings:
        click.echo(f"gpusched: warning: {warning}", err=True)
    return loaded


def option(setting: Setting, *, show_rare: bool = False) -> Callable[[F], F]:
    """Return the click option of a setting. Its value stays text: config parses what every layer names."""
    default = setting.default_text()
    help = f"{setting.help}."
    if not setting.is_switch and not setting.is_path and default != "none":
        help += f"  [default: {default}]"
    hidden = setting.is_rare and not show_rare
    if setting.is_switch:
        flags = f"{setting.flag}/--no-{setting.flag[2:]}"
        return click.option(flags, setting.name, default=None, help=help, hidden=hidden)
    return click.option(
        setting.flag,
        *setting.aliases,
        setting.name,
        default=None,
        metavar=setting.metavar,
        type=click.Choice(setting.choices, case_sensitive=False) if setting.choices else click.STRING,
        help=help,
        hidden=hidden,
    )


queue_option = click.option(
    "-q",
    "--queue",
    metavar="PATH|STEM",
    shell_complete=complete_queues,
    is_eager=True,  # a shell that completes jobs must know it
    help="Name the queue by its directory or its stem.  [default: the one of this directory]",
)


def standing_option(help: str = "Name the queue.  [default: your own]") -> Callable[[F], F]:
    """Give a command -q for a queue that stays, which need not exist yet."""
    return click.option("-q", "--queue", metavar="QUEUE", shell_complete=complete_queues, help=help)


def job_arguments(name: str = "jobs", *, required: bool = True) -> Callable[[F], F]:
    """Give a command JOB..., or a single JOB where it is called `job`; a shell completes ids and names."""
    if name == "jobs":
        return click.argument(name, nargs=-1, metavar="[JOB]...", shell_complete=complete_jobs)
    words = "JOB" if required else "[JOB]"
    return click.argument(name, required=required, metavar=words, shell_complete=complete_jobs)


def json_option(help: str = "Print JSON.") -> Callable[[F], F]:
    return click.option("--json", "as_json", is_flag=True, help=help)


def value_option(
    flag: str, name: str, help: str, parse: Callable[[str], float] = parse_duration, noun: str = "time"
) -> Callable[[F], F]:
    """Give a command an option that takes a time, in seconds, or what `parse` makes of it, called so."""

    def parse_or_refuse(_: object, __: object, text: str | None) -> float | None:
        try:
            return None if text is None else parse(text)
        except ValueError as error:
            raise GpuschedError(f"{text!r} is no {noun}", where=flag, hint=str(error)) from None

    return click.option(flag, name, metavar=noun.upper(), callback=parse_or_refuse, help=help)


def since_option(help: str) -> Callable[[F], F]:
    """Give a command the moment from which on it counts."""

    def parse(text: str) -> float:
        from gpusched.operations import queues

        return parse_moment(text, queues.now(), is_past=True)

    return value_option("--since", "since", help, parse)


def queue_argument(callback: F) -> F:
    """Give a command [QUEUE] and -q, which mean the same; the callback gets `queue`."""

    @click.argument("word", required=False, metavar="[QUEUE]", shell_complete=complete_queues)
    @queue_option
    @functools.wraps(callback)
    def wrapper(word: str | None, queue: str | None, **values: Any) -> Any:
        if word is not None and queue is not None:
            raise click.UsageError(f"Either QUEUE ({word}) or -q {queue}, not both.")
        return callback(queue=queue if word is None else word, **values)

    return cast(F, wrapper)


def find_queue(name: str | None, *, to_change: bool = False) -> QueueDir:
    """Return the queue that -q names, or the one of this directory. Where that is not plain, stderr says which."""
    return find_queue_of((), name, to_change=to_change)[0]


def find_queue_of(
    jobs: Sequence[str], name: str | None, *, to_change: bool = False, for_script: bool = False
) -> tuple[QueueDir, tuple[str, ...]]:
    """Return the queue that these jobs or -q name, and the jobs without it; stderr says which, if that is not plain."""
    from gpusched.operations import addresses

    if name is not None:
        check_queue_name(name)
    state_dir = load().settings.state_dir
    return addresses.find_queue_of(
        jobs, name, state_dir=state_dir, to_change=to_change, for_script=for_script, notify=say
    )


def say(text: str) -> None:
    """Print one line for people to stderr, beside the results on stdout."""
    from gpusched.common.text import clean

    click.echo(clean(f"gpusched: {text}"), err=True)


def warn_of_claims(settings: Settings) -> None:
    """Say to stderr if a mere user could remove the claims of others."""
    from gpusched.operations.box.report import claims_weakness

    if text := claims_weakness(settings):
        say(text)


def print_json(document: Mapping[str, object], *, indent: int | None = 2) -> None:
    """Print a document, with the version that grows when a field of any of them changes its meaning or goes."""
    click.echo(json.dumps({"schema_version": JSON_SCHEMA_VERSION, **document}, indent=indent))


def print_page(lines: list[Line]) -> None:
    """Print a page to stdout: coloured and cut to fit on a terminal, plain elsewhere."""
    from gpusched.views.tables import write

    write(sys.stdout, lines)


class SettingsCommand(GroupedCommand):
    """A command with settings. It takes several words after --gpu-list, and says what some options mean here."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        args = join_gpu_words(args)
        if ctx.resilient_parsing:
            return super().parse_args(ctx, args)
        notes = list(meanings(args, {flag for param in self.params for flag in param.opts}))
        try:
            rest = super().parse_args(ctx, args)
        except click.BadOptionUsage as error:
            raise self._without_value(error) from None
        queue, has_source = ctx.params.get("queue"), ctx.params.get("file") or ctx.params.get("command")
        if queue and not has_source and os.path.isfile(queue):
            raise GpuschedError(f"{queue} is a file, and no queue", where="-q", hint=QUIET)
        for note in notes if not ctx.params.get("quiet") else ():
            say(note)
        return rest

    def _without_value(self, error: click.BadOptionUsage) -> click.UsageError | GpuschedError:
        """Return the error about an option without its value in words that say what belongs there."""
        params = [each for each in self.params if isinstance(each, click.Option) and error.option_name in each.opts]
        if not params or params[0].is_flag:
            return error
        hint = (params[0].help or "").replace("  [", " [")
        return GpuschedError(
            f"the value is missing: {params[0].metavar or ''}".rstrip(" :"), where=error.option_name, hint=hint
        )
