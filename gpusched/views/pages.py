"""Make the pages of `status` and `explain` from rows of a queue. Reads no clock and no file, and prints nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gpusched.common.errors import disk_full
from gpusched.common.text import clean
from gpusched.core.jobs.lifecycle import CAUSE_FAILURES, LOSS_LIMIT
from gpusched.core.jobs.outcome import describe
from gpusched.core.jobs.readiness import CAUSE_DEPENDENCY, CAUSE_NOT_NEEDED
from gpusched.core.jobs.reconcile import CAUSE_REMOVED
from gpusched.core.model import AttemptRow, JobRow, JobState, Outcome, OutcomeKind
from gpusched.views.report import DeviceLine, RunningLine, places
from gpusched.views.tables import DIM, HEAD, STATES, TONES, Cell, Line, Row, grid, line
from gpusched.views.values import JobReport, JobWithLast, QueueReport, QueueSummary, Reasons, Scene
from gpusched.views.words import age, clock, command_text, count, mib, moment, short_path

SHOWN_JOBS = 10  # of each group, without -v
OLD_LOOK_S = 60.0  # a dispatcher that has published nothing for longer may be stuck


# ---- status ----------------------------------------------------------------------------------------


def queue_list(heads: Iterable[QueueSummary], now: float) -> list[Line]:
    rows: list[Row] = []
    for head in heads:
        by = _dispatcher_word(head)
        counts = head.counts
        numbers: list[Cell] = [str(counts.running), str(counts.queued + counts.held), str(counts.succeeded)]
        numbers.append((str(counts.failed), STATES["failed"] if counts.failed else ""))
        numbers.append(str(counts.cancelled) if counts.cancelled else "")
        since = age(now - head.started_at) if head.started_at else "-"
        rows.append([(clean(head.name), HEAD), by, *numbers, since, clean(head.waits_for)])
    columns = ["QUEUE", "DISPATCHER", "RUNNING", "QUEUED", "SUCCEEDED", "FAILED", "CANCELLED", "AGE", "WAITS FOR"]
    return grid(columns, rows, right="RUNNING QUEUED SUCCEEDED FAILED CANCELLED AGE")


def _dispatcher_word(head: QueueSummary) -> Cell:
    if head.pid is not None:
        return (f"pid {head.pid}" if head.pid else "yes", "green")
    return (f"none, {count(head.runs_on, 'job')} on its own", "yellow") if head.runs_on else "none"


def queue_page(report: QueueReport, *, every_job: bool = False) -> list[Line]:
    """Return the page of a queue: its GPUs, running, waiting and failed jobs; all jobs with `every_job`."""
    scene, head = report.scene, report.summary
    source = clean(short_path(report.source, scene.cwd))
    lines = [line((head.name, HEAD), f"  {short_path(scene.queue, scene.cwd)}  {source}")]
    lines.append(line(_by_whom(scene, head, report.looked_at)))
    if head.full_disk:
        what = disk_full(head.full_disk, "until it has room, no job starts and no end of a job is recorded")
        lines.append(line((clean(what), "bold red")))
    words: list[Cell] = []
    for word, number in head.counts.parts():
        words += [", " if words else "", (f"{number} {word}", STATES[word] if number else "")]
    lines.append(line(*words))
    lines += [line((group.name, HEAD), f"  {group.fraction:.0%}  {group.text}") for group in report.groups]
    if report.devices:
        lines += [line(), *device_table(report.devices)]
    if report.running:
        lines += [line(), *_running(report.running)]
    if report.waiting:
        lines += [line(), *_waiting(report.waiting, report.reasons, head.counts.queued)]
    if report.failed:
        lines += [line(), *_failed(scene, report.failed, head.counts.failed)]
    return [*lines, line(), *job_table(report.jobs, scene.now)] if every_job else lines


def _by_whom(scene: Scene, head: QueueSummary, looked_at: float | None) -> str:
    if head.pid is not None:
        who = f"dispatched by pid {head.pid}" if head.pid else "is being dispatched"
        if looked_at is None:
            return who
        since_s = max(0.0, scene.now - looked_at)
        if since_s >= OLD_LOOK_S:
            return f"{who}, which has reported nothing since its reading of the GPUs {clock(since_s)} ago"
        return f"{who}, which read the GPUs {since_s:.0f} s ago"
    if head.runs_on:
        return f"no dispatcher; {count(head.runs_on, 'job')} still running; to supervise them: {scene.resume}"
    if head.counts.running or (head.counts.queued and (head.can_start or not head.counts.held)):
        return f"no dispatcher; to continue: {scene.resume}"
    if head.counts.queued:
        return f"all queued jobs wait for held jobs; for the reason: gpusched explain JOB -q {scene.option}"
    if head.counts.held:
        return f"all jobs have ended or are held; to let held jobs start: gpusched release JOB -q {scene.option}"
    return "all jobs have ended; no dispatcher is needed" if head.counts.total else "no jobs"


def device_table(devices: Sequence[DeviceLine], *, full: bool = False) -> list[Line]:
    """Return the table of GPUs; with `full` also their names and all processes on them."""
    rows: list[Row] = []
    for d in devices:
        why: list[Cell] = [text for text in (d.detail, d.claimed) if text]
        if full and d.tone == "busy" and d.processes:
            why = why[1:] if d.detail and " in use by " in d.detail else why  # the processes say more
        who: list[Cell] = list(d.processes) if full else []
        rows.append([d.label, d.name if full else "", d.memory, d.use, (d.word, TONES[d.tone]), who, why])
    head = ["GPU", "NAME", "MEMORY", "USE", "STATE", "WHO", "WHY"]
    return grid(head, rows, right="GPU MEMORY USE")


def _running(running: Sequence[tuple[RunningLine, str]]) -> list[Line]:
    rows: list[Row] = []
    for job, tail in running:
        progress = job.progress if job.fraction is None else f"{job.fraction:.0%}  {job.progress}"
        texts: list[Cell] = [job.command]
        texts += [(f"[{job.mark}]", "yellow")] if job.mark else []
        texts += [progress] if progress else []
        texts += [(tail, DIM)] if tail else []
        rows.append([str(job.job_id), str(job.line), job.where, clock(job.elapsed_s), texts])
    return grid(["RUNNING", "LINE", "GPU", "TIME", "COMMAND"], rows, right="RUNNING LINE TIME")


def _waiting(waiting: Sequence[JobRow], reasons: Reasons, total: int) -> list[Line]:
    """Return the waiting jobs in the order of their start, with one heading for neighbours of the same reason."""
    lines: list[Line] = []
    width = max(7, *(len(str(job.id)) for job in waiting))
    lines.append(line((f"{'WAITING':>{width}}  LINE  COMMAND", HEAD)))
    before = ""
    for job in waiting[:SHOWN_JOBS]:
        kind, why = reasons.get(job.id, ("", ""))
        why = why.partition(": ")[0] if kind == "behind" else why
        if why and why != before:
            lines.append(line((f"{'':>{width}}  {clean(why)}:", "yellow")))
        before = why
        lines.append(Line(((f"{job.id:>{width}}  {job.line:>4}  {command_text(job.command)}", ""),), table=True))
    if total > SHOWN_JOBS:
        lines.append(line(f"{'':>{width}}  … and {total - SHOWN_JOBS} more (-v lists them)"))
    return lines


def _failed(scene: Scene, failed: Sequence[JobWithLast], total: int) -> list[Line]:
    rows: list[Row] = []
    for job, last in failed[:SHOWN_JOBS]:
        how = clean(describe(last.outcome)) if last and last.outcome else "failed"
        rows.append([str(job.id), str(job.line), how, command_text(job.command)])
    table = grid(["FAILED", "LINE", "HOW", "COMMAND"], rows, right="FAILED LINE")
    lines = table[:1]
    for row, (_, last) in zip(table[1:], failed, strict=False):
        lines.append(row)
        if last is not None:
            lines.append(line((f"{'':>14}{scene.path(last.error_log or last.log)}", DIM)))
    if total > SHOWN_JOBS:
        lines.append(line(f"{'':>6}  … and {total - SHOWN_JOBS} more (-v lists them)"))
    return lines


_UNTRIED = {  # cause -> why a job was not tried
    CAUSE_REMOVED: "its line was removed",
    CAUSE_DEPENDENCY: "a dependency failed",
    CAUSE_NOT_NEEDED: "not needed",
    CAUSE_FAILURES: "its tag fails at once",
}


def job_table(jobs: Iterable[JobWithLast], now: float) -> list[Line]:
    """Return the table of all jobs, one line each."""
    rows: list[Row] = []
    for job, last in jobs:
        spent, how = "", ""
        if last is not None and job.state is not JobState.QUEUED:
            spent = clock((last.ended_at or now) - last.started_at)
            how = clean(describe(last.outcome)) if last.outcome and job.state is not JobState.SUCCEEDED else ""
        how = _UNTRIED.get(job.cause, how)
        where = places(last.devices) if last is not None and job.state is not JobState.QUEUED else ""
        state = (job.state.value, STATES[job.state.value])
        command = command_text(job.command)
        tries = str(job.attempts) if job.attempts > 1 else ""
        rows.append([str(job.id), str(job.line), state, tries, where, spent, how, command])
    columns = ["JOB", "LINE", "STATE", "ATTEMPTS", "GPU", "TIME", "HOW", "COMMAND"]
    return grid(columns, rows, right="JOB LINE ATTEMPTS TIME")


# ---- explain ---------------------------------------------------------------------------------------


def job_page(report: JobReport) -> list[Line]:
    """Return the page of one job with its attempts."""
    scene, job, attempts = report.scene, report.job, report.attempts
    head = line((f"job {job.id}", HEAD), f", line {job.line}: ", (job.state.value, STATES[job.state.value]))
    lines = [head, line(f"  {command_text(job.command)}")]
    lines.append(line((f"  in {clean(job.cwd.decode('utf-8', 'replace'))}", DIM)))
    for attempt in attempts:
        lines += [line(), *_attempt(scene, job, attempt)]
    lines.append(line())
    lines += [line(f"  {clean(text)}") for text in [*report.current, *_what_next(scene, job, attempts)]]
    return lines


def _attempt(scene: Scene, job: JobRow, attempt: AttemptRow) -> list[Line]:
    began = moment(attempt.started_at, scene.now)
    where = ", ".join(f"GPU {d.index} ({clean(d.name)})" if d.name else f"GPU {d.index}" for d in attempt.devices)
    where = where or "the CPU"
    if attempt.outcome is None or attempt.ended_at is None:
        spent = clock(scene.now - attempt.started_at)
        lines = [line((f"attempt {attempt.number}", HEAD), f"  since {began} ({spent}) on {where}")]
        return [*lines, line(f"  log   {scene.path(attempt.log)}")]
    span = f"{began} to {moment(attempt.ended_at, scene.now)} ({clock(attempt.ended_at - attempt.started_at)})"
    lines = [line((f"attempt {attempt.number}", HEAD), f"  {span} on {where}")]
    lines.append(line("  how   ", (clean(describe(attempt.outcome)), "" if attempt.outcome.ok else "red")))
    lines += [line(f"  hint  {text}") for text in hints(attempt.outcome, stated=bool(job.stated_mem_bytes))]
    lines += [line(f"  log   {scene.path(name)}") for name in (attempt.log, attempt.error_log) if name]
    used = _usage_text(job, attempt)
    return [*lines, line(f"  used  {used}")] if used else lines


def _usage_text(job: JobRow, attempt: AttemptRow) -> str:
    usage, parts = attempt.usage, []
    if usage.peak_memory_bytes is not None:
        stated = ""
        if job.stated_mem_bytes:
            on_one = f"{mib(usage.peak_device_bytes or 0)} on one; " if len(attempt.devices) > 1 else ""
            stated = f" ({on_one}{mib(job.stated_mem_bytes)} MiB stated)"
        parts.append(f"{mib(usage.peak_memory_bytes)} MiB of GPU memory at most{stated}")
    if usage.mean_utilisation is not None:
        parts.append(f"{usage.mean_utilisation:.0%} GPU use on average")
    if attempt.max_rss_bytes is not None:
        parts.append(f"{mib(attempt.max_rss_bytes)} MiB of main memory at most")
    if usage.energy_j is not None:
        parts.append(f"{usage.energy_j / 3600:.1f} Wh")
    return ", ".join(parts)


def _what_next(scene: Scene, job: JobRow, attempts: Sequence[AttemptRow]) -> list[str]:
    again = f"to queue it again: gpusched requeue {job.id} -q {scene.option}"
    if job.state is JobState.FAILED:
        tries = f"no try is left (--retries {job.retries})"
        if job.tries <= job.retries:
            tries = "it is not retried automatically"
        if job.losses > LOSS_LIMIT:
            tries = f"it was repeated {LOSS_LIMIT} times without a fault of its own; that is the limit"
        return [tries, again]
    if job.state is JobState.CANCELLED and job.cause == CAUSE_REMOVED:
        return ["its line was removed from the list; it is queued again if the line returns"]
    if job.state in (JobState.CANCELLED, JobState.HELD) and job.cause in (CAUSE_DEPENDENCY, CAUSE_NOT_NEEDED):
        return ["it is released when one of the jobs that it waits for is queued again"]
    if job.state is JobState.CANCELLED:
        return ["it was cancelled", again]
    if job.state is JobState.HELD:
        return [f"to let it start again: gpusched release {job.id} -q {scene.option}"]
    if job.state is JobState.QUEUED and attempts and job.retries:
        return [f"tries so far: {job.tries} of {job.retries + 1}"]
    return []


_CAUSE_HINTS = {
    "gpu_oom": "the next try goes to a GPU with more free memory, if there is one; a smaller batch needs less",
    "budget": "the next try gets a larger budget than its mem, if a GPU can give that; a smaller batch needs less",
    "host_oom": "the box ran out of main memory, not the GPU: fewer jobs at once or fewer data loaders help",
    "gpu_busy": "another user took the GPU; this spends no try, and the job is repeated on another GPU",
    "gpu_lost": "the driver lost the GPU; this spends no try, and the job is repeated on another GPU; ask the admin",
    "unkillable": "it hangs in the kernel and survived SIGKILL; its GPU stays claimed until it ends",
    "disk_full": "the disk was full before it could start; it is repeated",
    "bad_command": "the shell or the working directory is missing",
    "idle": "its log may show why it waited; --idle-action report leaves such jobs running",
}
_EXIT_HINTS = {
    126: "the file is there but may not be executed: chmod +x",
    127: "the shell found no such program: the jobs get the environment of gpusched; "
    "--setup FILE sources a file before each",
    141: "a program in the pipe was still writing when its reader ended, as in `… | head -1`; "
    "add `|| true` if that is right",
}


def hints(outcome: Outcome, *, stated: bool = False) -> list[str]:
    """Return advice about an outcome, if there is any. `stated`: the job states its memory."""
    cause = "budget" if stated and outcome.cause == "gpu_oom" else outcome.cause
    texts = [_CAUSE_HINTS[cause]] if cause in _CAUSE_HINTS else []
    if outcome.kind is OutcomeKind.EXITED and outcome.exit_code in _EXIT_HINTS:
        texts.append(_EXIT_HINTS[outcome.exit_code])
    if not texts and 9 in (outcome.signal, (outcome.exit_code or 0) - 128) and not outcome.cause:
        texts.append("SIGKILL often comes from the kernel when main memory is full: see `dmesg | tail`")
    if outcome.kind is OutcomeKind.TIMED_OUT and outcome.cause != "idle":
        texts.append("--time-limit TIME gives the next one longer")
    if outcome.kind is OutcomeKind.LOST:
        texts.append("its shepherd was killed too, for example by systemd, logind, docker stop or a reboot")
    return texts
