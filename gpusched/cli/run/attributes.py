"""The attributes of jobs as options of a command."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Mapping
from typing import Any, cast

import click

from gpusched.cli.options import F, say, value_option
from gpusched.cli.spelling import are_gpus
from gpusched.common.errors import GpuschedError
from gpusched.common.quantities import parse_moment

begin_option = value_option(
    "--begin",
    "begin_at",
    "Start no earlier than 22:30, 2026-12-24T08:00, +2h.",
    lambda text: parse_moment(text, time.time()) if text else 0.0,
)

# The attributes that are options, each with its metavar and its help.
ATTRIBUTES = {
    "name": ("NAME", "Call the job so; its log has this name, too."),
    "tag": ("TAG,...", "Put the jobs into these groups."),
    "gpus": ("N", "Give each job N GPUs; 0: a CPU job.  [default: 1]"),
    "mem": ("SIZE", "State the GPU memory that each job needs: 18G, auto."),
    "gpu-model": ("NAME", "Use only GPUs with this in their name: A100."),
    "alone": ("yes|no", "Start only on a GPU without any process of others."),
    "cpus": ("N", "State the cores that each job needs."),
    "ram": ("SIZE", "State the memory of the host that each job needs."),
    "time": ("TIME", "Stop a job after this time: 90m, 2:00:00."),
    "prio": ("N", "Start jobs with a higher number first.  [default: 0]"),
    "after": ("JOB,...", "Start after these have succeeded: ids, names, tags."),
    "after-any": ("JOB,...", "Start after one of these has succeeded."),
    "after-failed": ("JOB,...", "Start after one of these has failed."),
    "after-ended": ("JOB,...", "Start after these have ended, however."),
    "retries": ("N", "Try a failed job again, up to N times.  [default: 0]"),
    "items": ("N", "State how many items each job does, for the estimate."),
    "cwd": ("DIR", "Run the jobs there.  [default: this directory]"),
    "node": ("NAME", "Use only this node of the cluster."),
    "node-tag": ("TAG", "Use only nodes of the cluster with this tag."),
    "nodes": ("spread|pack", "Take the emptiest node, or fill one after another.  [default: spread]"),
}


def attribute_options(callback: F) -> F:
    """Give a command these options and --env; the callback gets the `attributes` that they state."""

    @functools.wraps(callback)
    def wrapper(*args: Any, env: tuple[str, ...], **kwargs: Any) -> Any:
        from gpusched.lists.attributes import make

        stated = {key: kwargs.pop(key.replace("-", "_")) for key in ATTRIBUTES}
        return callback(*args, attributes=make(_values(stated, env)), **kwargs)

    return cast(F, _options(wrapper, ATTRIBUTES))


def edit_options(callback: F) -> F:
    """Give a command the options that change waiting jobs; the callback gets the parsed `attributes` by key.

    An empty text stands for None: the job is to state it no more.
    """
    keys = {key: (metavar, help.partition("  [")[0]) for key, (metavar, help) in ATTRIBUTES.items() if key != "cwd"}

    @functools.wraps(callback)
    def wrapper(*args: Any, env: tuple[str, ...], **kwargs: Any) -> Any:
        stated = {key: kwargs.pop(key.replace("-", "_")) for key in keys}
        values = _values({key: text or None for key, text in stated.items()}, env)
        return callback(*args, attributes={**{key: None for key in stated if stated[key] == ""}, **values}, **kwargs)

    return cast(F, _options(wrapper, keys))


def _options(callback: Callable[..., Any], keys: dict[str, tuple[str, str]]) -> Callable[..., Any]:
    click.option("--env", metavar="NAME=VALUE", multiple=True, help="Set this variable for the jobs.")(callback)
    for key, (metavar, help) in reversed(keys.items()):
        click.option(f"--{key}", metavar=metavar, help=help)(callback)
    return callback


def _values(stated: Mapping[str, str | None], env: tuple[str, ...]) -> dict[str, object]:
    """Return the values that the options state, by key. Raises GpuschedError for values that cannot be right."""
    from gpusched.lists.attributes import key_fault, parse_value, value_doubt

    texts = {key: os.fsencode(text) for key, text in stated.items() if text is not None}
    for text in env:
        name, equals, value = text.partition("=")
        if not equals or key_fault(f"env.{name}") is not None:
            hint = "a variable of the job's own: --env WANDB_MODE=offline"
            raise GpuschedError(f"cannot be {text!r}", where="--env", hint=hint)
        texts[f"env.{name}"] = os.fsencode(value)
    values: dict[str, object] = {}
    for key, word in texts.items():
        try:
            values[key] = parse_value(key, word)
        except ValueError as error:
            text = os.fsdecode(word)
            is_list = key == "gpus" and are_gpus(text)
            hint = f"--gpus is their number; these alone, for all jobs: gpusched set gpu-list={text}" if is_list else ""
            raise GpuschedError(f"{text!r} is not {error}", where=f"--{key}", hint=hint) from None
        if (doubt := value_doubt(key, word, values[key])) is not None:
            say(f"warning: --{doubt.message}: {doubt.hint}")
    return values
