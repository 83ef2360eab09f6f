"""The dispatcher of a standing queue, in this process. Prints nothing."""

from __future__ import annotations

import json
from dataclasses import replace

from gpusched.common.errors import EXIT_DISPATCHED_ELSEWHERE
from gpusched.config.layers import LoadedSettings
from gpusched.config.settings import Settings
from gpusched.dispatcher import Hooks, Quiet
from gpusched.host.queue.queue_dirs import QueueDir
from gpusched.host.store import Store, meta_table
from gpusched.lists.submit import SubmitOptions
from gpusched.operations.devices import open_devices
from gpusched.operations.run import QUIET_SESSION, Queue, RunSession, detach, set_up_log
from gpusched.operations.standing.background import begin_anew
from gpusched.operations.standing.renewal import Renewal

EXPLICIT = ("flag", "env")  # origins that count more than what `gpusched set` has stored


def with_stored(loaded: LoadedSettings, store: Store) -> Settings:
    """Return the settings with those that `gpusched set` has stored for this queue, unless they are stated now."""
    stored = json.loads(meta_table.read(store, "set") or "{}")
    wanted = {name: value for name, value in stored.items() if not loaded.origins[name].startswith(EXPLICIT)}
    return Settings.from_json(json.dumps({**json.loads(loaded.settings.to_json()), **wanted}))


def dispatch_standing(queue_dir: QueueDir, loaded: LoadedSettings, session: RunSession = QUIET_SESSION) -> int:
    """Dispatch a queue, for jobs that come later too, and return the exit code.

    It leaves after `idle_exit` without a job; at once with 75 if another dispatcher works on the queue. A newer
    gpusched that was installed takes this process over.
    """
    with Queue(queue_dir) as queue:
        options = SubmitOptions(with_stored(loaded, queue.store), b"/")
        settings = options.settings
        if session.log_level is not None:
            set_up_log(queue_dir, session.log_level)
        with open_devices(settings, 0) as devices:
            renewal = Renewal(settings, devices)
            hooks = Hooks(follow=True, idle_exit_s=settings.idle_exit, renew=renewal.reason)
            with session.watch(queue) as observer:
                watched = replace(hooks, observer=observer or Quiet())
                code = queue.dispatch(options, devices, hooks=watched, notify=session.notify, submitted=False)
            if queue.kept_lock is not None and not renewal.why:
                detach(queue, devices, session.notify)
                code = queue.dispatch(options, devices, hooks=hooks, submitted=False)
        if code == EXIT_DISPATCHED_ELSEWHERE:
            session.notify(f"{queue_dir.path} is being dispatched by pid {queue_dir.dispatcher()}; leaving (75)")
    if queue.kept_lock is not None:
        begin_anew(queue.kept_lock)
    return code
