"""`gpusched run -- COMMAND...`: submit one job, and follow it to its end."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

import click

from gpusched.cli.options import SettingsCommand, load, say
from gpusched.cli.run.submit import command_job
from gpusched.common.errors import EXIT_DISPATCHED_ELSEWHERE, EXIT_INTERRUPTED, EXIT_SOME_FAILED
from gpusched.config.layers import LoadedSettings
from gpusched.config.run_settings import RUN_SETTINGS

OF_A_JOB = ("gpus_per_job", "mem", "time_limit", "retries")  # the settings that a single job takes
_WORDS = "gpusched.words"


class RunCommand(SettingsCommand):
    """A command that is another one with the words behind `--`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        end = args.index("--") if "--" in args else len(args)
        ctx.meta[_WORDS] = args[end + 1 :]
        return super().parse_args(ctx, args[:end])

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
    (job_id,) = submit.add_jobs(queue_dir, command_job(words, options), options, submit.Wishes()).ids
    warn_without_gpus(queue_dir, loaded.settings, loaded.settings.gpus_per_job, notify)
    autostart(queue_dir, loaded.settings, notify)
    address = f"{job_id} -q {queue or queue_dir.name}"
    notify(f"job {job_id} of {queue_dir.path}")
    try:
        code = copy_log(queue_dir, str(job_id), sys.stdout.buffer, LogChoice(follow=True), notify=notify)
    except KeyboardInterrupt:
        say(f"job {job_id} goes on: `gpusched logs -f {address}` follows it, `gpusched cancel {address}` ends it")
        return EXIT_INTERRUPTED
    return EXIT_SOME_FAILED if code == EXIT_DISPATCHED_ELSEWHERE else code
