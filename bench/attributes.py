"""Measure a long list of jobs with attributes: the time to its first job, and the cost of an event.

An event is the end of a job that another one waits for, up to the booking of that one: the store, the head of the
queue and the plan, as the dispatcher combines them, without processes.
"""

from __future__ import annotations

import os
import random
import sqlite3
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from bench.common import Box, Row, Unusable, interleaved, median, paired_ratio, spread
from gpusched.config.settings import Settings
from gpusched.core.jobs.lifecycle import JobEvent, Verdict
from gpusched.core.model import JobState, Outcome, OutcomeKind, Sample
from gpusched.core.plan.availability import Availability, DeviceState
from gpusched.core.plan.snapshot import DeviceView, Snapshot, Start
from gpusched.dispatcher.jobs.queue_head import QueueHead
from gpusched.host.store import Store, attempt_table, job_table, transitions
from gpusched.host.store.attempt_table import AttemptEnd
from gpusched.lists.submit import SubmitOptions, read, submit

DEVICES = 8
SUCCEEDED = Outcome(OutcomeKind.EXITED, 0)


def list_of(jobs: int) -> list[str]:
    """Return jobs with attributes; every fifth waits for another by name. Every call returns the same jobs."""
    draw = random.Random(1)
    lines = []
    for n in range(jobs):
        words = [f"mem={draw.choice((2, 4, 8, 12, 16, 20, 24))}G", f"prio={draw.randint(-5, 5)}", f"tag=set{n % 10}"]
        words += [f"time={draw.randint(1, 9)}h", f"env.SEED={n}"] if n % 3 else []
        words += [f"name=job-{n}"] if n % 10 == 0 else []
        words += [f"after=job-{n - n % 10 if n % 10 else n - 10}"] if n % 5 == 4 else []
        lines.append(f"[{' '.join(words)}] true --seed {n} --rate 3e-4 --out runs/model-{n}")
    return lines


def to_first_job(directory: Path, lines: Sequence[str]) -> float:
    """Return the seconds from the start of `gpusched run` to the start of its first job."""
    box = Box(directory, DEVICES)
    began = time.time()
    with box.running(lines) as process:
        box.wait_for(box.database.exists, process)

        def started() -> bool:
            time.sleep(0.2)
            try:
                with box.store() as store:
                    return job_table.counts(store)[JobState.SUCCEEDED] > 0
            except Exception:  # it is being made
                return False

        box.wait_for(started, process)
        process.kill()
    with box.store() as store:
        if sum(job_table.counts(store).values()) != len(lines):
            raise Unusable(f"the queue holds {sum(job_table.counts(store).values())} of {len(lines)} jobs")
    return box.attempts()[0][0] - began


def bare(directory: Path, lines: Sequence[str]) -> float:
    """Return the seconds to write these lines and their dependencies into SQLite in one synced transaction."""
    began = time.perf_counter()
    db = sqlite3.connect(directory / "bare.db", isolation_level=None)
    for pragma in ("journal_mode = WAL", "synchronous = FULL"):
        db.execute(f"PRAGMA {pragma}")
    db.execute("CREATE TABLE jobs (id INTEGER PRIMARY KEY, line TEXT NOT NULL, state TEXT NOT NULL)")
    db.execute(
        "CREATE TABLE waits (job INTEGER NOT NULL, other INTEGER NOT NULL, PRIMARY KEY (job, other)) WITHOUT ROWID"
    )
    db.execute("BEGIN")
    db.executemany("INSERT INTO jobs (line, state) VALUES (?, 'queued')", ((line,) for line in lines))
    waiting = (n for n, line in enumerate(lines, 1) if "after=" in line)
    db.executemany("INSERT INTO waits VALUES (?, ?)", ((n, n - 1) for n in waiting))
    db.execute("COMMIT")
    db.close()
    return time.perf_counter() - began


# ---- events ------------------------------------------------------------------------------------------


def chains(length: int) -> list[str]:
    """Return a chain of dependent jobs for each device, before all other jobs."""
    first = [f"[name=c{n}-0 prio=9] true" for n in range(DEVICES)]
    return first + [
        f"[name=c{n}-{i} after=c{n}-{i - 1} prio=9] true {i}" for n in range(DEVICES) for i in range(1, length)
    ]


def views(busy: Sequence[str]) -> tuple[DeviceView, ...]:
    results = []
    for n in range(DEVICES):
        state = DeviceState.RUNNING if f"GPU-{n}" in busy else DeviceState.FREE
        availability = Availability(f"GPU-{n}", 9, state, state.value, sample=Sample(f"GPU-{n}", 0.0), foreign_bytes=0)
        results.append(DeviceView(availability, 80 << 30, f"GPU {n}", held=True, looked=True))
    return tuple(results)


def event_ms(directory: Path, waiting: int, events: int) -> list[float]:
    """Return the milliseconds of CPU of each of `events` events, with `waiting` other jobs in the queue."""
    rules = SubmitOptions(Settings(max_jobs_per_gpu=1, max_gpus=DEVICES), os.fsencode(directory))
    lines = chains(events // DEVICES + 2) + list_of(waiting)
    jobs = read("".join(f"{line}\n" for line in lines).encode(), rules, "list.txt")
    store = Store(str(directory / "queue.db"), create=True)
    submit(store, jobs.specs, rules, 0.0)
    names = {job.id: job.name for job in job_table.jobs(store)}
    head = QueueHead(store)
    running: dict[str, int] = {}  # device -> job

    def start() -> list[int]:
        if transitions.take_freed(store):
            head.forget()
        plan = head.plan(Snapshot(1.0, rules.limits, views(list(running)), max_checks=1))
        starts = [action for action in plan.actions if isinstance(action, Start)]
        for action in starts:
            attempt_table.start(store, action.job_id, 1.0, "log", "", ())
            running[action.devices[0]] = action.job_id
        head.take_out({action.job_id for action in starts})
        return [action.job_id for action in starts]

    start()
    results = []
    for n in range(events):
        uuid = f"GPU-{n % DEVICES}"
        began = time.process_time()
        ended = running.pop(uuid)
        with store.transaction():
            attempt_table.close(store, ended, 1, AttemptEnd(SUCCEEDED, 1.0), Verdict(JobEvent.SUCCEEDED, 1, 0), now=1.0)
        started = start()
        results.append((time.process_time() - began) * 1000)
        chain, number = names[ended].split("-")
        if [names[job] for job in started] != [f"{chain}-{int(number) + 1}"]:
            raise Unusable(f"after {names[ended]} came {[names[job] for job in started]}")
    store.close()
    return results


def measure(work_dir: Path, quick: bool, report: Callable[[str], None]) -> list[Row]:
    few, many, events, rounds = (20, 300, 16, 1) if quick else (100, 100_000, 200, 3)
    lines = list_of(many)
    plain = [line.partition("] ")[2] for line in lines]
    lists = interleaved(
        work_dir,
        rounds,
        {
            "bare tables": lambda directory: bare(directory, lines),
            "attributes": lambda directory: to_first_job(directory, lines),
            "plain lines": lambda directory: to_first_job(directory, plain),
        },
        report,
    )
    costs = interleaved(
        work_dir,
        rounds,
        {
            f"event, {few}": lambda directory: median(event_ms(directory, few, events)),
            f"event, {many}": lambda directory: median(event_ms(directory, many, events)),
        },
        report,
    )
    small, large = costs[f"event, {few}"], costs[f"event, {many}"]
    waits = sum("after=" in line for line in lines)
    what = f"{many:,} jobs with attributes, {waits:,} dependencies: start to first job"
    return [
        Row(
            what,
            median(lists["attributes"]),
            "s",
            "rows in SQLite",
            median(lists["bare tables"]),
            at_most=20,
            note=spread(lists["attributes"]),
        ),
        Row("the same", median(lists["attributes"]), "s", "without attributes", median(lists["plain lines"])),
        Row(
            f"end of a job to the booking of its dependant, {many:,} wait",
            median(large),
            "ms of CPU",
            f"{few} wait",
            median(small),
            at_most=1.5,
            of_ratio=True,
            paired=paired_ratio(large, small),
            note=f"{spread(large)}; {few}: {spread(small)}" if rounds > 1 else "",
        ),
    ]
