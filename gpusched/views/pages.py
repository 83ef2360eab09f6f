"""Rows of a queue -> the pages of `status` and `explain`. Reads no clock and no file, and prints nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

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

SHOWN_JOBS = 10  # of each group, unless all are asked for
OLD_LOOK_S = 60.0  # a dispatcher that has published nothing for so long may be stuck, or unable to


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
    scene, head = report.scene, report.summary
    source = clean(short_path(report.source, scene.cwd))
    lines = [line((head.name, HEAD), f"  {short_path(scene.queue, scene.cwd)}  {source}")]
    lines.append(line(_by_whom(scene, head, report.looked_at)))
    if head.full_disk:
        where = clean(short_path(head.full_disk, scene.cwd))
        what = f"the disk of {where} is full: until it has room nothing new starts, and no end of a job is noted"
        lines.append(line((what, "bold red")))
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
            return f"{who}, which has told nothing since it looked at the GPUs {clock(since_s)} ago"
        return f"{who}, which looked at the GPUs {since_s:.0f} s ago"
    if head.runs_on:
        return f"no dispatcher; {count(head.runs_on, 'job')} go on by themselves; to take them over: {scene.resume}"
    if head.counts.running or (head.counts.queued and (head.can_start or not head.counts.held)):
        return f"no dispatcher; to go on: {scene.resume}"
    if head.counts.queued:
        return f"what is queued waits for held jobs: gpusched explain JOB -q {scene.option} says why they are held"
    if head.counts.held:
        return f"what is not held has ended; to let held jobs start: gpusched release JOB -q {scene.option}"
    return "all has ended; no dispatcher is needed" if head.counts.total else "holds no jobs"


def device_table(devices: Sequence[DeviceLine], *, full: bool = False) -> list[Line]:
    """The GPUs; with `full` also their names and every process on them."""
    rows: list[Row] = []
    for d in devices:
        why: list[Cell] = [text for text in (d.detail, d.claimed) if text]
        if full and d.tone == "busy" and d.processes:
            why = why[1:] if d.detail and " in use by " in d.detail else why  # the processes say it better
        who: list[Cell] = list(d.processes) if full else []
        rows.append([d.label, d.name if full else "", d.memory, d.use, (d.word, TONES[d.tone]), who, why])
    head = ["GPU", "NAME", "MEMORY", "USE", "STATE", "WHO", "WHY"]
    return grid(head, rows, right="GPU MEMORY USE")


def _running(running: Sequence[tuple[RunningLine, str]]) -> list[Line]:
    rows: list[Row] = []
    for job, tail in running:
        told = job.progress if job.fraction is None else f"{job.fraction:.0%}  {job.progress}"
        texts: list[Cell] = [job.command]
        texts += [(f"[{job.mark}]", "yellow")] if job.mark else []
        texts += [told] if told else []
        texts += [(tail, DIM)] if tail else []
        rows.append([str(job.job_id), str(job.line), job.where, clock(job.elapsed_s), texts])
    return grid(["RUNNING", "LINE", "GPU", "TIME", "COMMAND"], rows, right="RUNNING LINE TIME")


def _waiting(waiting: Sequence[JobRow], reasons: Reasons, total: int) -> list[Line]:
    """Jobs that wait for the same stand together, in the order in which they will start."""
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
    for shown, (_, last) in zip(table[1:], failed, strict=False):
        lines.append(shown)
        if last is not None:
            lines.append(line((f"{'':>14}{scene.path(last.error_log or last.log)}", DIM)))
    if total > SHOWN_JOBS:
        lines.append(line(f"{'':>6}  … and {total - SHOWN_JOBS} more (-v lists them)"))
    return lines


_UNTRIED = {  # why a job was not tried, by its cause
    CAUSE_REMOVED: "its line is gone",
    CAUSE_DEPENDENCY: "for what it waits for",
    CAUSE_NOT_NEEDED: "not needed",
    CAUSE_FAILURES: "its tag fails at once",
}


def job_table(jobs: Iterable[JobWithLast], now: float) -> list[Line]:
    """Every job, one line each."""
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
            tries = "it is not tried again by itself"
        if job.losses > LOSS_LIMIT:
            tries = f"it was repeated {LOSS_LIMIT} times without a fault of its own, and is not repeated again"
        return [tries, again]
    if job.state is JobState.CANCELLED and job.cause == CAUSE_REMOVED:
        return ["its line is no longer in the list; it comes back with the line"]
    if job.state in (JobState.CANCELLED, JobState.HELD) and job.cause in (CAUSE_DEPENDENCY, CAUSE_NOT_NEEDED):
        return ["it is freed by itself when one of those that it waits for is queued again"]
    if job.state is JobState.CANCELLED:
        return ["it was cancelled, and stays so", again]
    if job.state is JobState.HELD:
        return [f"to let it start again: gpusched release {job.id} -q {scene.option}"]
    if job.state is JobState.QUEUED and attempts and job.retries:
        return [f"tries so far: {job.tries} of {job.retries + 1}"]
    return []


_CAUSE_HINTS = {
    "gpu_oom": "the next try goes to a GPU with more free memory, if there is one; a smaller batch needs less",
    "budget": "the next try gets a larger budget than its mem, if a GPU can give that; a smaller batch needs less",
    "host_oom": "the box ran out of main memory, not the GPU: fewer jobs at once or fewer data loaders help",
    "gpu_busy": "somebody else took the GPU; it spends no try and is repeated elsewhere",
    "gpu_lost": "the driver lost the GPU; it spends no try and is repeated elsewhere; the box may need its admin",
    "unkillable": "it hangs in the kernel and did not die of KILL; its GPU stays claimed until it does",
    "disk_full": "the disk was full before it could start; it is repeated",
    "bad_command": "the shell or the working directory is missing",
    "idle": "its log may tell what it waited for; --idle-action report leaves such jobs running",
}
_EXIT_HINTS = {
    126: "the file is there but may not be executed: chmod +x",
    127: "the shell found no such program: the jobs get the environment of gpusched; "
    "--setup FILE sources a file before each",
    141: "a program in the pipe was still writing when its reader ended, as in `… | head -1`; "
    "add `|| true` if that is right",
}


def hints(outcome: Outcome, *, stated: bool = False) -> list[str]:
    """What to do about an end, where there is something to say. `stated`: the job says how much memory it needs."""
    cause = "budget" if stated and outcome.cause == "gpu_oom" else outcome.cause
    found = [_CAUSE_HINTS[cause]] if cause in _CAUSE_HINTS else []
    if outcome.kind is OutcomeKind.EXITED and outcome.exit_code in _EXIT_HINTS:
        found.append(_EXIT_HINTS[outcome.exit_code])
    if not found and 9 in (outcome.signal, (outcome.exit_code or 0) - 128) and not outcome.cause:
        found.append("KILL from outside is often the kernel short of main memory: `dmesg | tail` shows it")
    if outcome.kind is OutcomeKind.TIMED_OUT and outcome.cause != "idle":
        found.append("--time-limit TIME gives the next one longer")
    if outcome.kind is OutcomeKind.LOST:
        found.append(
            "whatever killed it killed gpusched's process beside it too: systemd, logind, docker stop, a reboot"
        )
    return found
