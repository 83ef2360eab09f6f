"""The options by which a queue is dispatched now: those of its newest start, and what follows from them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from gpusched.common.errors import GpuschedError
from gpusched.config.settings import Settings, changed
from gpusched.core.plan import selection
from gpusched.core.plan.selection import Selection
from gpusched.dispatcher.device_book import DeviceBook
from gpusched.dispatcher.jobs.feed import Feed
from gpusched.dispatcher.reporter import Observer, Quiet, Reporter
from gpusched.dispatcher.timers import Clock
from gpusched.host.attempts import launcher
from gpusched.host.code.job_dirs import JobDirs
from gpusched.host.store import Store, job_table, meta_table
from gpusched.lists.submit import SubmitOptions, criteria


@dataclass(frozen=True, slots=True)
class Hooks:
    """Attachments of a dispatcher: where more jobs come from, who watches, and what a test wants to control."""

    feed: Feed = field(default_factory=Feed)
    observer: Observer = field(default_factory=Quiet)
    follow: bool = False  # stay when all has ended
    idle_exit_s: float | None = None  # then leave after so long without a job; None: never
    renew: Callable[[], str] = lambda: ""  # asked often: why another process is to go on; empty: no reason
    clock: Clock = field(default_factory=Clock)
    step: Callable[[str], None] = lambda name: None  # called with the name of each step of an action


class QueueOptions:
    """The newest options of a queue. Everybody who goes by them reads them here at the time of use."""

    def __init__(self, store: Store, devices: DeviceBook, submit: SubmitOptions, *, is_standing: bool) -> None:
        """Raises GpuschedError when the allowed set of devices is empty or can never serve a job.

        A standing dispatcher takes any box: jobs that it cannot serve wait.
        """
        self._store, self._devices, self._is_standing = store, devices, is_standing
        self.submit = submit if submit.dirs is not None else self._with_newest_dirs(submit)
        self.warnings: tuple[str, ...] = ()  # about the allowed devices
        self.shell: tuple[bytes, ...] = ()  # the words before a command, ending in -c
        self._apply(submit.settings)

    @property
    def settings(self) -> Settings:
        return self.submit.settings

    @property
    def quick_fails_max(self) -> int:
        """`max_quick_fails`; 0 in the queues of features, whose items fail for reasons of their own."""
        return self.settings.max_quick_fails if meta_table.maker(self._store) == "run" else 0

    def take_newest(self, reporter: Reporter) -> None:
        """Take over the options of another start of this queue; report what is different, or why they are not taken."""
        text = meta_table.read(self._store, "settings")
        if text is None:
            return
        self.submit = self._with_newest_dirs(self.submit)
        self._take(Settings.from_json(text), "a newer start", reporter)

    def change(self, changes: Mapping[str, object], reporter: Reporter) -> None:
        """Go by other values of some settings; report what is different, or why they are not taken."""
        self._take(self.settings.with_values(changes), "gpusched set", reporter)

    def inherit(self, before: QueueOptions, reporter: Reporter) -> None:
        """Go on by the options of a dispatcher of this process that has failed."""
        self.submit = replace(before.submit, settings=self.settings)
        self._take(before.settings, "the dispatcher before", reporter)

    def _take(self, settings: Settings, who: str, reporter: Reporter) -> None:
        before = self.settings
        try:
            self._apply(settings)
        except GpuschedError as error:
            reporter.report("warning", f"newer options are not taken: {error}")
            return
        if changes := changed(before, self.settings):
            reporter.report("queue", f"{who} gave other options: {', '.join(changes)}")

    def _apply(self, settings: Settings) -> None:
        """Go by these settings. Raises GpuschedError for what this box can never meet, and changes nothing then."""
        chosen, shell = self._select(settings), launcher.find_shell(settings.shell)
        self.warnings, self.shell = chosen.warnings, shell
        self.submit = replace(self.submit, settings=settings)
        self._devices.configure(chosen.uuids, criteria(settings))

    def _select(self, settings: Settings) -> Selection:
        return selection.select(
            self._devices.known(),
            wanted=settings.gpu_list,
            outer_mask=os.environ.get("CUDA_VISIBLE_DEVICES"),
            outer_order=os.environ.get("CUDA_DEVICE_ORDER"),
            gpus_per_job=self._gpus_wanted(settings),
            max_gpus=settings.max_gpus,
        )

    def _gpus_wanted(self, settings: Settings) -> int:
        """Return how many GPUs a job of the queue wants, by its own word or by the options; 0 if no job wants one."""
        if self._is_standing and not self._devices.has_devices:
            return 0
        if job_table.wants_gpus(self._store):
            return max(1, settings.gpus_per_job)
        return settings.gpus_per_job if self._devices.has_devices else 0

    def _with_newest_dirs(self, submit: SubmitOptions) -> SubmitOptions:
        """Add where the jobs of the newest submission run: what it has copied is not copied again."""
        text = meta_table.read(self._store, "dirs")
        return submit if text is None else replace(submit, dirs=JobDirs.from_json(text))
