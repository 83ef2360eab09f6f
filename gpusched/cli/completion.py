"""Completion of words in a shell: files, queues, ids and names of jobs. Reads within bounds, and never fails."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

import click

from gpusched.common.errors import GpuschedError

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

LIMIT = 100  # words that a shell is offered
Complete = Callable[[click.Context, click.Parameter, str], "list[CompletionItem]"]


def complete_files(_: click.Context, __: click.Parameter, begin: str) -> list[CompletionItem]:
    """Leave it to the shell, which knows its files."""
    from click.shell_completion import CompletionItem

    return [CompletionItem(begin, type="file")]


def complete_queues(_: click.Context, __: click.Parameter, begin: str) -> list[CompletionItem]:
    """Return the names of this user's queues; directories, where a path is being typed."""
    from gpusched.operations import queues

    if "/" in begin:
        from click.shell_completion import CompletionItem

        return [CompletionItem(begin, type="dir")]
    known = queues.known_queues()[:LIMIT]
    return _items(((queues.queue_name(queue, known), "") for queue in known), begin)


def complete_jobs(ctx: click.Context, _: click.Parameter, begin: str) -> list[CompletionItem]:
    """Return names and ids of the jobs of the queue that -q names, or of the one that is meant without it."""
    from gpusched.operations import queues

    with suppress(GpuschedError, OSError):
        return _items(queues.job_words(queues.find_queue(ctx.params.get("queue")), begin, LIMIT), begin)
    return []


def _items(words: Iterable[tuple[str, str]], begin: str) -> list[CompletionItem]:
    from click.shell_completion import CompletionItem

    return [CompletionItem(word, help=text or None) for word, text in words if word.startswith(begin)]
