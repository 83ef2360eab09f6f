"""`gpusched run -- COMMAND...`: submit one job, and follow it to its end."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from typing import Any

import click

from gpusched.cli.options import SettingsCommand, load, say
from gpusched.cli.run.submit import command_job
from gpusched.common.errors import (
    EXIT_CANNOT_WORK,
    EXIT_DISPATCHED_ELSEWHERE,
    EXIT_INTERRUPTED,
    EXIT_SOME_FAILED,
    GpuschedError,
)
from gpusched.common.processes import has_program
from gpusched.config.layers import LoadedSettings
from gpusched.config.settings import RUN_SETTINGS

OF_A_JOB = ("gpus_per_job", "mem", "time_limit", "retries")  # the settings that a single job takes
_WORDS = "gpusched.words"


class RunCommand(SettingsCommand):
    """A command that is another one with the words behind `--`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        end = args.index("--") if "--" in args else len(args)
        ctx.meta[_WORDS] = args[end + 1 :]
        try:
            return super().parse_args(ctx, args[:end])
        except click.UsageError as error:
            if end == len(args) and (begin := self._find_program(args)) is not None:
                words = shlex.join(["gpusched", "run", *args[:begin], "--", *args[begin:]])
                problem = f"{error.message.rstrip('.')} (did you mean {words}?)."
                raise click.UsageError(problem, error.ctx) from None
            raise

    def _find_program(self, args: list[str]) -> int | None:
        """Return where a command begins that lacks its `--`: at the first word of all, if it is a program."""
        options = [param for param in self.params if isinstance(param, click.Option) and not param.is_flag]
        with_value = {flag for option in options for flag in option.opts}
        words = (n for n, word in enumerate(args) if word[:1] != "-" and not with_value.intersection(args[n - 1 : n]))
        first = next(words, None)
        return first if first is not None and has_program(args[first]) else None

    def invoke(self, ctx: click.Context) -> Any:
        words = ctx.meta[_WORDS]
        if not words:
            return super().invoke(ctx)
        taken = {*OF_A_JOB, "queue", "quiet", "verbose"}
        for param in self.params:
            if param.name not in taken and ctx.params[str(param.name)] not in (None, False, ()):
                name = param.opts[-1] if isinstance(param, click.Option) else "FILE"
                hint = "how a queue is dispatched is said to gpusched start; gpusched submit has more options for a job"
                raise click.UsageError(f"{name} does not go with -- COMMAND ({hint}).")
        loaded = load({name: ctx.params[name] for name in RUN_SETTINGS if name in OF_A_JOB})
        return run_one(words, ctx.params["queue"], loaded, quiet=ctx.params["quiet"])


def run_one(words: Sequence[str], queue: str | None, loaded: LoadedSettings, *, quiet: bool) -> int:
    """Submit a command to the queue, print what it writes, and return its exit code; 1 in place of 75."""
    from gpusched.lists.submit import SubmitOptions
    from gpusched.operations.look.logs import LogChoice, copy_log
    from gpusched.operations.queues import ignore
    from gpusched.operations.run import submit
    from gpusched.operations.run.background import autostart, warn_without_gpus

    notify = ignore if quiet else say
    options = SubmitOptions(loaded.settings, os.fsencode(os.getcwd()))
    queue_dir = submit.find_standing_queue(queue, loaded.settings.state_dir)
    try:
        (job_id,) = submit.add_jobs(queue_dir, command_job(words, options), options, submit.Wishes()).ids
    except GpuschedError as error:  # of a queue of another host
        error.exit_code = EXIT_CANNOT_WORK if error.exit_code == EXIT_DISPATCHED_ELSEWHERE else error.exit_code
        raise
    warn_without_gpus(queue_dir, loaded.settings, loaded.settings.gpus_per_job, notify)
    autostart(queue_dir, loaded.settings, notify)
    address = f"{job_id} -q {queue or queue_dir.name}"
    notify(f"job {job_id} of the queue {queue or queue_dir.name}")
    try:
        code = copy_log(queue_dir, str(job_id), sys.stdout.buffer, LogChoice(follow=True), notify=notify)
    except KeyboardInterrupt:
        say(f"job {job_id} goes on: `gpusched logs -f {address}` follows it, `gpusched cancel {address}` ends it")
        return EXIT_INTERRUPTED
    return EXIT_SOME_FAILED if code == EXIT_DISPATCHED_ELSEWHERE else code
