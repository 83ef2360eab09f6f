"""`gpusched start`: dispatch a queue that stays, here or in the background."""

from __future__ import annotations

import os

import click

from gpusched.cli.options import SettingsCommand, say, settings_options, standing_option
from gpusched.common.errors import EXIT_DISPATCHED_ELSEWHERE, EXIT_OK, GpuschedError
from gpusched.config.layers import LoadedSettings
from gpusched.config.settings import RUN_SETTINGS


@click.command(cls=SettingsCommand, epilog="Example: gpusched start --max-gpus 2")
@standing_option()
@click.option("--detach", is_flag=True, help="Start it in the background, and return.")
@settings_options(*[name for name in RUN_SETTINGS if name != "log_dir"], "claims_dir", "idle_exit")
@click.option("-v", "--verbose", is_flag=True, help="Log more.")
@click.option("--quiet", is_flag=True, help="Print only what asks for action.")
def start(queue: str | None, detach: bool, loaded: LoadedSettings, verbose: bool, quiet: bool) -> int:
    """Dispatch a queue that stays.

    Submitted jobs start as GPUs fall free. It leaves after ten minutes without a
    job (idle_exit); a later submission starts another one.
    """
    from gpusched.cli.run.options import RunOptions
    from gpusched.cli.run.session import session
    from gpusched.operations.run import submit
    from gpusched.operations.run.background import start_as_stated
    from gpusched.operations.run.start import dispatch_standing

    queue_dir = submit.find_standing_queue(queue, loaded.settings.state_dir)
    if queue is None:
        submit.make_queue(queue_dir)
    elif not queue_dir.exists():
        raise GpuschedError("there is no such queue", where=queue_dir.path, hint="`gpusched submit -q` makes it")
    if detach:
        pid = start_as_stated(queue_dir, loaded, say, os.environ)
        if pid is None:
            raise GpuschedError(
                f"is being dispatched already (pid {queue_dir.dispatcher()})",
                where=queue_dir.path,
                hint=f"for other settings: gpusched stop -q {queue_dir.name}, then this again",
                exit_code=EXIT_DISPATCHED_ELSEWHERE,
            )
        say(f"dispatching {queue_dir.path} (pid {pid}); its log is {queue_dir.log}")
        return EXIT_OK
    return dispatch_standing(queue_dir, loaded, session(RunOptions(loaded, verbose=verbose, quiet=quiet)))
