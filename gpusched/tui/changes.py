"""The keys of `gpusched top` that change something: each asks what it must, and goes the way of its verb."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import ClassVar

from textual.binding import Binding, BindingType

from gpusched.common.errors import GpuschedError
from gpusched.common.quantities import parse_memory
from gpusched.config.settings import Settings
from gpusched.core.model import ENDED_STATES, JobState
from gpusched.operations.change import edit, requests, settings
from gpusched.operations.change.requests import ChangeReport
from gpusched.operations.look.overview import OverviewReader
from gpusched.operations.queues import QueueDir
from gpusched.tui.app import ViewApp
from gpusched.tui.dialogs import Confirmation, Entry
from gpusched.tui.job_list import JobList
from gpusched.views.changes import change_lines
from gpusched.views.words import count, fit

Change = Callable[[QueueDir, list[str]], ChangeReport]

CHANGES: dict[str, Change] = {
    "cancel": requests.cancel,
    "hold": requests.hold,
    "release": requests.release,
    "requeue": requests.requeue,
}


class TopApp(ViewApp):
    """The view with the keys that change what is in it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("c", "cancel", "Cancel", tooltip="cancel the job; asks"),
        Binding("h", "change('hold')", "Hold", tooltip="keep it from starting"),
        Binding("r", "change('release')", "Release", tooltip="let a held one start again"),
        Binding("u", "change('requeue')", "Requeue", tooltip="queue a failed or cancelled one again"),
        Binding("plus", "prio(1)", "", show=False, key_display="+", tooltip="start it earlier: priority + 1"),
        Binding("minus", "prio(-1)", "", show=False, key_display="-", tooltip="start it later: priority - 1"),
        Binding("m", "memory", "Memory", tooltip="change the GPU memory that it states"),
        Binding("p", "pause", "Pause", tooltip="pause the queue, which asks, or let it go on"),
        Binding("g", "max_gpus", "GPUs", tooltip="change how many GPUs the queue may use"),
    ]

    def _jobs(self) -> list[str]:
        """Return the ids of the jobs that are marked, or else of the chosen one."""
        jobs = self.query_one(JobList)
        ids = sorted(jobs.marked) or [each for each in [jobs.chosen_id] if each is not None]
        return [str(job_id) for job_id in ids]

    def _named(self) -> str:
        chosen, ids = self.query_one(JobList).chosen, self._jobs()
        return count(len(ids), "job") if len(ids) != 1 or chosen is None else f"job {ids[0]} ({fit(chosen.text, 60)})"

    async def _change(self, change: Change) -> None:
        """Have something changed as its verb does it, and show what has come of it."""
        if self.view is None or self.view.queue_dir is None:
            return
        try:
            report = await self.in_thread(partial(change, self.view.queue_dir, self._jobs()))
        except (GpuschedError, OSError) as error:
            self.notify(str(error), severity="error", markup=False)
        else:
            texts = [*change_lines(report.jobs), *report.notes]
            self.notify("\n".join(texts), severity="warning" if report.refused else "information", markup=False)
            self.query_one(JobList).unmark()
        await self.in_thread(self.reader.hurry)
        self.wake.set()

    def action_change(self, name: str) -> None:
        self.run_worker(self._change(CHANGES[name]))

    def _ask(self, text: str, change: Change) -> None:
        def answer(is_wanted: bool | None) -> None:
            if is_wanted:
                self.run_worker(self._change(change))

        self.push_screen(Confirmation(text), answer)

    def _enter(self, text: str, value: str, change: Callable[[str], Change]) -> None:
        def answer(text: str | None) -> None:
            if text is not None:
                self.run_worker(self._change(change(text.strip())))

        self.push_screen(Entry(text, value), answer)

    def action_cancel(self) -> None:
        ids, chosen = self._jobs(), self.query_one(JobList).chosen
        if chosen is not None and ids == [str(chosen.job_id)] and JobState(chosen.state) in ENDED_STATES:
            self.action_change("cancel")  # which says that there is nothing to cancel
        elif ids:
            self._ask(f"Cancel {self._named()}? What runs is stopped.", requests.cancel)

    def action_pause(self) -> None:
        if self.view is None or self.view.queue is None:
            return
        summary = self.view.queue.summary
        if summary.is_paused:
            self.run_worker(self._change(lambda queue_dir, _: requests.set_paused(queue_dir, paused=False)))
        else:
            text = f"Pause the queue {summary.name}? Nothing new starts; what runs goes on."
            self._ask(text, lambda queue_dir, _: requests.set_paused(queue_dir, paused=True))

    def action_prio(self, by: int) -> None:
        chosen = self.query_one(JobList).chosen
        if chosen is not None:
            self.run_worker(self._change(partial(_edit, {"prio": int(chosen.prio or 0) + by})))

    def action_memory(self) -> None:
        if self._jobs():
            text = f"GPU memory of {self._named()} on each GPU, such as 18G or auto; empty: it states none"
            self._enter(text, "", _memory_change)

    def action_max_gpus(self) -> None:
        if self.view is None or self.view.queue is None:
            return
        pid = self.view.queue.summary.pid
        boards = [each.board for each in self.view.box.devices if each.board is not None and each.board.pid == pid]
        now = str(boards[0].limits.max_gpus) if boards else ""
        text = f"The most GPUs that {self.view.queue.summary.name} may hold; empty: as its settings say"
        self._enter(text, now, lambda text: lambda queue_dir, _: settings.set_settings(queue_dir, [f"max-gpus={text}"]))


def _edit(attributes: dict[str, object], queue_dir: QueueDir, jobs: list[str]) -> ChangeReport:
    return edit.edit(queue_dir, jobs, edit.JobEdit(attributes))


def _memory_change(text: str) -> Change:
    def change(queue_dir: QueueDir, jobs: list[str]) -> ChangeReport:
        try:
            return _edit({"mem": parse_memory(text) if text else None}, queue_dir, jobs)
        except ValueError as error:
            raise GpuschedError(f"{text!r} is not {error}") from None

    return change


def run_top(choose: Callable[[], Sequence[QueueDir]], settings: Settings) -> None:
    """Show these queues until a person leaves."""
    app = TopApp(OverviewReader(choose, settings))
    try:
        app.run()
    finally:
        app.close()
    if app.trouble is not None:
        raise app.trouble
