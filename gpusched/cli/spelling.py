"""Options that other tools spell or mean otherwise: what is refused, and what is said once. Runs nothing."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress

from gpusched.common.errors import GpuschedError
from gpusched.common.quantities import format_duration, parse_duration, parse_size
from gpusched.config.values import is_gpu

QUIET = "-q names a queue; quiet is --quiet"
GPU_FLAGS = ("--gpu-list", "--gpus")  # --gpus takes no list: it is joined for the message


def join_gpu_words(args: Sequence[str]) -> list[str]:
    """Return `--gpu-list 0 1, 2 FILE` as `--gpu-list 0,1,2 FILE`. The list ends at the first word that is no GPU."""
    joined: list[str] = []
    for number, word in enumerate(args):
        flag, equals, value = word.partition("=")
        if word == "--":
            return [*joined, *args[number:]]
        if flag in GPU_FLAGS:
            joined += [flag, value] if equals else [flag]
        elif joined[-2:-1] and joined[-2] in GPU_FLAGS and are_gpus(word):
            joined[-1] = f"{joined[-1].rstrip(',')},{word}"
        else:
            joined.append(word)
    return joined


def are_gpus(word: str) -> bool:
    """Return True for a list of indices, ranges and UUIDs."""
    return all(is_gpu(token) for token in re.split(r"[,\s]+", word.strip(", ")))


def meanings(args: Sequence[str], flags: Collection[str]) -> Iterator[str]:
    """Yield what those of the `flags` mean that mean something else in other tools.

    Raises GpuschedError for a value that shows that the other meaning was expected.
    """
    options = args[: args.index("--")] if "--" in args else args
    for word, following in zip(options, [*options[1:], ""], strict=False):
        flag, equals, value = word.partition("=")
        value = value if equals else following
        if flag in ("-q", "--queue") and flag in flags:
            check_queue_name(value)
        elif flag == "--time" and flag in flags:
            yield from _time_in_words(value)
        elif flag == "--mem" and flag in flags:
            with suppress(ValueError):  # refused where all settings are read
                yield f"--mem {value} is {parse_size(value) >> 20} MiB on each GPU of a job, not memory of the host"
        elif flag == "--gpus" and flag in flags and value:
            _refuse_gpu_ids(value)
            number = "1 GPU" if value == "1" else f"{value} GPUs"
            yield f"--gpus {value} gives each job {number}; --gpu-list {value} would choose GPUs by their indices"


def _time_in_words(value: str) -> Iterator[str]:
    with suppress(ValueError):
        meaning = format_duration(parse_duration(value))
        if meaning != value:
            yield f"--time {value} is {meaning}" + (": a bare number is seconds" if value.isdecimal() else "")


def check_queue_name(name: str) -> None:
    """Raise GpuschedError for a word after -q that can be no name of a queue."""
    if not name or name.startswith("-"):
        problem = f"a queue's name does not begin with a dash: {name}" if name else "the name of a queue is missing"
        raise GpuschedError(problem, where="-q", hint=QUIET)


def _refuse_gpu_ids(value: str) -> None:
    if re.fullmatch("[1-9][0-9]{0,4}", value):
        return
    hint = "for example --gpus 2; which GPUs may be used: --gpu-list 0,1,4-7"
    if value == "0":
        hint = "jobs without a GPU: --gpus-per-job 0; GPU 0 alone: --gpu-list 0"
    elif value == "all":
        hint = "all GPUs may be used unless --gpu-list names some; --max-gpus N says how many at once"
    elif are_gpus(value):
        hint = f"these GPUs alone: --gpu-list {value}"
    raise GpuschedError(f"is a number of GPUs for each job, not {value!r}", where="--gpus", hint=hint)
