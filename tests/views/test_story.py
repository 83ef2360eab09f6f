"""The report of a queue: its sums, its charts, and a page that is whole, escaped, bounded, and loads nothing."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpusched.core.model import AttemptRow, DeviceUse, JobRow, JobState, Outcome, OutcomeKind
from gpusched.core.samples import GpuStretch, Stretch
from gpusched.views.failures import group_failures
from gpusched.views.report import tally
from gpusched.views.story.charts import LEFT, WIDTH, TimeScale, tracks
from gpusched.views.story.page import render
from gpusched.views.story.values import QueueStory, gpu_times, idle_costs, waited_s, waits_by_kind
from gpusched.views.story.words import WAITS, idle_text
from gpusched.views.values import QueueReport, QueueSummary, Scene, UsageSum
from tests.support import build
from tests.views.test_html import Reader

T = 1_760_000_000.0
OK = Outcome(OutcomeKind.EXITED, 0)
BAD = Outcome(OutcomeKind.EXITED, 3, note="RuntimeError: shape")


def attempt(
    job_id: int, number: int, began_s: float, ended_s: float | None, outcome: Outcome | None, *gpus: int
) -> AttemptRow:
    devices = tuple(DeviceUse(f"GPU-{n}", n, "A100") for n in gpus)
    ended_at = None if ended_s is None else T + ended_s
    return build.attempt_row(
        job_id, number, started_at=T + began_s, ended_at=ended_at, outcome=outcome, devices=devices
    )


def job(job_id: int, state: JobState, attempts: int = 1, **more: Any) -> JobRow:
    fields = {"submitted_at": T, "state": state, "attempts": attempts, "ended_at": None, **more}
    return build.job_row(job_id, **fields)


JOBS: Sequence[tuple[JobRow, Sequence[AttemptRow]]] = (
    (job(1, JobState.SUCCEEDED, ended_at=T + 100), [attempt(1, 1, 10, 100, OK, 0)]),
    (
        job(2, JobState.FAILED, 2, ended_at=T + 200, tags=("a",)),
        [attempt(2, 1, 20, 60, BAD, 0), attempt(2, 2, 100, 200, BAD, 1)],
    ),
    (job(3, JobState.RUNNING), [attempt(3, 1, 150, None, None, 0, 1)]),
    (job(4, JobState.QUEUED, 0), []),
)


def stretch(at: float, *gpus: GpuStretch, waits: dict[str, float] | None = None) -> Stretch:
    states = {"queued": 2.0, "held": 0.0, "running": 1.0}
    return Stretch(T + at, T + at + 100, 100.0, states, waits or {}, {f"GPU-{gpu.index}": gpu for gpu in gpus})


STRETCHES = (
    stretch(
        0,
        GpuStretch(0, 1000.0, 500.0, 600.0, 0.5, 90.0, 80.0, jobs={"1": [90.0, 400.0]}, idle={"checking": 10.0}),
        GpuStretch(1, 1000.0, 900.0, 950.0, 0.9, others_s=100.0, who={"bo's <b>": 100.0}),
        waits={"memory": 2.0},
    ),
    stretch(
        100,
        GpuStretch(0, 1000.0, 10.0, 20.0, 0.0, jobs={"1": [60.0, 300.0]}, idle={"free: memory": 70.0, "free": 30.0}),
        GpuStretch(1, 1000.0, 500.0, 600.0, 0.5, 100.0, 0.0),
        waits={"memory": 1.0, "held": 1.0},
    ),
)


def story(jobs: Sequence[tuple[JobRow, Sequence[AttemptRow]]] = JOBS, **more: Any) -> QueueStory:
    counts = tally({state: sum(row.state is state for row, _ in jobs) for state in JobState})
    summary = QueueSummary("night", None, 0, counts, T, "")
    failed = [(row, tried[-1] if tried else None) for row, tried in jobs if row.state is JobState.FAILED]
    report = QueueReport(Scene(T + 300, "/", "/q", "night", "x"), summary, "", None, "", [], [], [], {}, failed)
    usage = UsageSum({("night", 1)}, 3, 1, 3600, 7200, 1800, 3.6e6)
    fields: dict[str, Any] = {
        "report": report,
        "began_at": T,
        "ended_at": T + 300,
        "jobs": jobs,
        "stretches": STRETCHES,
        "by_tag": {"a": usage, "": usage},
        "by_device": {"GPU 0": usage},
        "together": usage,
        "failures": [(group, ["last line"]) for group in group_failures(failed)],
    }
    return QueueStory(**{**fields, **more})


def data_of(page: str) -> dict[str, Any]:
    """Return what the script of a page reads."""
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    return dict(json.loads(found[1]))


# ---- sums ------------------------------------------------------------------------------------------


def test_the_time_of_each_gpu_is_split() -> None:
    first, second = gpu_times(STRETCHES).values()
    assert (first.working_s, first.held_s, first.others_s, first.free_s) == (80, 10, 0, 110)
    assert (second.working_s, second.held_s, second.others_s, second.free_s) == (0, 100, 100, 0)
    assert idle_costs([first, second]) == {"memory": 70}


def test_a_job_waits_before_between_and_after_its_attempts() -> None:
    waits = [waited_s(row, tried, T + 300) for row, tried in JOBS]
    assert waits == [10, 20 + 40, 150, 300]
    assert waits_by_kind(story()) == {"memory": 315, "held": 105, "unrecorded": 10 + 60 + 150 + 300 - 420}


def test_every_kind_of_reason_has_words() -> None:
    from tests.support.paths import ROOT

    text = (ROOT / "gpusched/core/plan/snapshot.py").read_text()
    kinds = re.search(r"kind: str  # (.*)", text)
    assert kinds is not None and set(kinds[1].split(" | ")) <= WAITS.keys()
    assert idle_text("free: memory") == "free, while jobs waited for memory on a GPU"


# ---- charts ----------------------------------------------------------------------------------------


def test_bars_are_where_the_attempts_were() -> None:
    scale = TimeScale(T, T + 300)
    first, second = tracks(story(), scale)
    assert [(bar.label, bar.kind, bar.lane) for bar in first.bars] == [
        ("1", "succeeded", 0),
        ("2.1", "retried", 1),
        ("3", "running", 0),
    ]
    assert [(bar.label, bar.kind) for bar in second.bars] == [("2.2", "failed"), ("3", "running")]
    assert first.bars[0].x == pytest.approx(LEFT + (WIDTH - LEFT) * 10 / 300)
    assert first.bars[2].end == WIDTH
    assert [(bar.kind, bar.label) for bar in first.background] == [
        ("idle", "free, while jobs waited for memory on a GPU")
    ]
    assert [bar.kind for bar in second.background] == ["others"]


@given(st.lists(st.tuples(st.floats(0, 290), st.floats(0.001, 50)), min_size=1, max_size=300))
def test_bars_never_overlap_and_are_no_more_than_can_be_seen(spans: list[tuple[float, float]]) -> None:
    jobs = [
        (job(n, JobState.SUCCEEDED), [attempt(n, 1, began, began + lasted, OK, 0)])
        for n, (began, lasted) in enumerate(spans, 1)
    ]
    (track,) = tracks(story(jobs, stretches=()), TimeScale(T, T + 350))
    assert sum(bar.number for bar in track.bars) == len(spans)
    for lane in range(track.lanes):
        own = [bar for bar in track.bars if bar.lane == lane]
        assert all(before.end <= after.x for before, after in pairwise(own))


# ---- the page --------------------------------------------------------------------------------------


def test_the_page_is_whole_and_its_policy_allows_its_own_script_and_style_alone() -> None:
    page = render(story())
    assert not Reader(page.replace("<!doctype html>", "")).open
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)
    assert policy is not None
    rules = dict(rule.strip().split(" ", 1) for rule in policy[1].split(";"))
    assert rules["default-src"] == rules["base-uri"] == rules["form-action"] == "'none'"
    for tag, rule in (("style", "style-src"), ("script", "script-src")):
        (text,) = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert rules[rule] == f"'sha256-{digest}'"
    assert not re.search(r'\s(?:on\w+|style)="', page) and "http" not in re.sub(
        "http-equiv|http://www.w3.org/2000/svg", "", page
    )


def test_the_numbers_are_on_it() -> None:
    text = " ".join(" ".join(Reader(render(story())).texts).split())
    assert "1 running, 1 queued, 1 succeeded, 1 failed" in text
    assert "exit 3, RuntimeError: shape (job 2)" in text and "last line" in text
    assert "memory on a GPU 0.0875 61%" in text
    assert "a 1 3 1 1.00 2.00 1.50 0.50 1.00" in text


HOSTILE = "</script><script>alert(1)</script><!-- \u2028 \x1b[2J & \" ' onload=x"


def test_text_from_outside_stays_text() -> None:
    row = replace(JOBS[1][0], name=HOSTILE, command=HOSTILE.encode(), tags=(HOSTILE,))
    usage = UsageSum()
    page = render(
        story(
            [(row, JOBS[1][1])],
            failures=[(group_failures([(row, JOBS[1][1][-1])])[0], [HOSTILE])],
            by_tag={HOSTILE: usage},
            by_device={HOSTILE: usage},
        )
    )
    found = Reader(page)
    assert not found.open and page.count("<script") == 2 and "\x1b" not in page and "\u2028" not in page
    assert data_of(page)["jobs"][0][2].startswith("</script><script>alert(1)")
    assert any("<script>alert(1)" in text for text in found.texts)


def test_secrets_are_masked() -> None:
    row = replace(JOBS[0][0], command=b"HF_TOKEN=hf_abcdefghijklmnopqrstuvwx python x.py")
    assert "hf_abc" not in render(story([(row, JOBS[0][1])]))


def test_an_empty_queue_has_a_page() -> None:
    page = render(story((), stretches=(), by_tag={}, by_device={}))
    assert "No job has failed." in page and "No GPU was recorded." in page and data_of(page)["jobs"] == []


@pytest.mark.slow
def test_ten_thousand_jobs_make_a_page_that_a_browser_opens_at_once() -> None:
    jobs = [
        (
            job(n, JobState.SUCCEEDED, command=b"python train.py --config some/path.yaml --seed %d" % n),
            [attempt(n, 1, 8.0 * (n // 32), 8.0 * (n // 32) + 7, OK, n % 8)],
        )
        for n in range(1, 10_001)
    ]
    page = render(story(jobs, ended_at=T + 2600))
    assert len(data_of(page)["jobs"]) == 10_000
    assert len(page) < 6_000_000 and page.count("<rect") <= 8 * 4 * WIDTH / 1.5
