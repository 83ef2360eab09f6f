"""The dispatcher of a standing queue, in this process. Prints nothing."""

from __future__ import annotations

from dataclasses import replace

from gpusched.common.errors import EXIT_DISPATCHED_ELSEWHERE
from gpusched.common.libraries import refuse_missing
from gpusched.config.layers import LoadedSettings
from gpusched.dispatcher import Hooks, Quiet
from gpusched.host.queue.queue_dirs import QueueDir
from gpusched.lists.submit import SubmitOptions
from gpusched.operations.box.devices import open_devices
from gpusched.operations.run.background import begin_anew, begin_simulation
from gpusched.operations.run.renewal import Renewal
from gpusched.operations.run.run import QUIET_SESSION, RunQueue, RunSession, detach, set_up_log
from gpusched.operations.run.stored import with_stored


def dispatch_standing(
    queue_dir: QueueDir, loaded: LoadedSettings, session: RunSession = QUIET_SESSION, *, stays: bool = True
) -> int:
    """Dispatch a queue, for jobs that come later too, and return the exit code.

    It leaves after `idle_exit` without a job, or at once if it does not stay; with 75 if another dispatcher works on
    the queue. A newer gpusched that was installed takes the process of one that stays over.
    """
    if loaded.settings.notify and "notify" in loaded.stated():  # a file stops no dispatcher that nobody watches
        refuse_missing("--notify", ["apprise"])
    with RunQueue(queue_dir) as queue:
        options = SubmitOptions(with_stored(loaded, queue.store), b"/")
        settings = options.settings
        if session.log_level is not None:
            set_up_log(queue_dir, session.log_level)
        begin_simulation(queue.store, queue_dir, settings)
        with open_devices(settings, 0) as devices:
            renewal = Renewal(settings, devices)
            hooks = Hooks(follow=True, idle_exit_s=settings.idle_exit if stays else 0.0)
            if stays:
                hooks = replace(hooks, renew=renewal.reason)
            with session.watch(queue) as observer:
                watched = replace(hooks, observer=observer or Quiet())
                code = queue.dispatch(options, devices, hooks=watched, notify=session.notify, submitted=False)
            if queue.kept_lock is not None and not renewal.why:
                detach(queue, devices, session.notify)
                code = queue.dispatch(queue.newest or options, devices, hooks=hooks, submitted=False)
        if code == EXIT_DISPATCHED_ELSEWHERE:
            session.notify(f"{queue_dir.path} is being dispatched by pid {queue_dir.dispatcher()}; leaving (75)")
    if queue.kept_lock is not None:
        begin_anew(queue.kept_lock)
    return code
