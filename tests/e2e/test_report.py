"""Forty jobs on four GPUs beside a colleague, with failures, retries and packing: everybody tells the same of them."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from textual.pilot import Pilot

from gpusched.host.queue import queue_dirs, samples
from gpusched.operations.look.story import read_story
from gpusched.tui.changes import TopApp
from gpusched.views.story.charts import TimeScale, tracks
from gpusched.views.story.values import QueueStory, gpu_times, waits_by_kind
from gpusched.views.words import clock
from tests.support.box import SIMJOB, Box, wait_for
from tests.support.screen import play, screen, until_shown
from tests.support.web_page import PageReader, WebPage
from tests.views.test_html import Reader
from tests.views.test_story import data_of

LIST = (
    *(f"[mem=20G tag=sweep] {SIMJOB} --mem 9000 --hold 1.{n % 5} --util {n * 3} # {n}" for n in range(26)),
    *(f"[tag=big gpus=2] {SIMJOB} --mem 30000 --hold 1 --util 80 # {n}" for n in range(3)),
    *(f"[retries=1 tag=bad,odd] {SIMJOB} --mem 900 --hold 0.4; exit 3 # {n}" for n in range(2)),  # no quarantine
    *(f"[retries=1 tag=bad,odd gpus=0] sleep 0.4; exit 3 # {n}" for n in range(2)),
    *(f"[retries=1 tag=odd gpus=0] test -e f{n} && sleep 0.6 || {{ touch f{n}; exit 1; }}" for n in range(4)),
    "[tag=cpu gpus=0] sleep 1",
    f"[name=first] {SIMJOB} --hold 0.5",
    "[after=first] echo done",
)
OPTIONS = "--max-checks 3 --max-gpus 3 --max-quick-fails 0 --report"


class Night:
    """The box after the run, and what each of its witnesses says."""

    def __init__(self, root: Path, box: Box) -> None:
        self.box = box
        bo = box.colleague(3, 8000, hold_s=8)
        (root / "prom").mkdir()
        self.run = box.run(*LIST, options=OPTIONS, GPUSCHED_METRICS_TEXTFILE=str(root / "prom"))
        bo.wait()
        self.path = box.queue()
        self.page = (self.path / "report.html").read_text()
        self.prometheus = next((root / "prom").glob("*.prom")).read_text()

    def ask(self, *words: str) -> Any:
        return json.loads(self.box.gpusched(*words, "--json", "-q", "list").out)

    @property
    def story(self) -> QueueStory:
        return read_story(queue_dirs.QueueDir(str(self.path), str(self.path)))


@pytest.fixture(scope="module")
def night(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Night]:
    root = tmp_path_factory.mktemp("night")
    with Box(root, "4") as box:
        yield Night(root, box)


def test_the_same_numbers_everywhere(night: Night) -> None:
    assert night.run.code == 1 and f"report   {night.path.relative_to(night.box.work)}/report.html" in night.run.out
    rows = night.box.jobs()
    status, usage = night.ask("status", "-v")["queues"][0], night.ask("usage")
    jobs = data_of(night.page)["jobs"]
    states = Counter(row.state for row in rows)
    assert states == {"succeeded": 36, "failed": 4} == Counter(job[1] for job in jobs)
    assert states == Counter(job["state"] for job in status["jobs"])
    assert (status["successful_jobs"], status["failed_jobs"], status["total_jobs"]) == (36, 4, 40)
    assert night.box.metrics()["failed_jobs"] == 4
    attempts = sum(len(row.attempts) for row in rows)
    assert attempts == usage["total"]["attempts"] == sum(job[6] for job in jobs) >= 48
    assert usage["total"]["failed_attempts"] == sum(a[4] != "exit 0" for job in jobs for a in job[15])
    failed = {job[0]: job[14].partition(", ")[0] for job in jobs if job[1] == "failed"}
    assert failed == dict.fromkeys(range(30, 34), "exit 3")
    text = " ".join(" ".join(Reader(night.page).texts).split())
    for line in night.box.gpusched("status", "list").out.splitlines()[1:4]:
        assert " ".join(line.split()) in text
    for row in usage["usage"]:
        hours = [f"{row[name]:.4f}" for name in ("job_hours", "gpu_hours")]
        found = f"{row['tag'] or 'no tag'} {row['jobs']} {row['attempts']} {row['failed_attempts']} {' '.join(hours)}"
        assert found in text


def test_top_shows_these_numbers(night: Night) -> None:
    heads = [" ".join(line.split()) for line in night.box.gpusched("status", "list").out.splitlines()[1:4]]
    jobs = {job[0]: job for job in data_of(night.page)["jobs"]}

    async def steps(app: TopApp, pilot: Pilot[None]) -> None:
        await until_shown(app, pilot, "36 succeeded, 4 failed")
        lines = [" ".join(line.split()) for line in screen(app)]
        assert all(any(line.endswith(head) for line in lines) for head in heads)
        rows = {int(line.split()[0]): line.split()[1:5] for line in lines if re.match(r"[0-9]+ (succ|fail)", line)}
        assert rows.keys() == jobs.keys()
        for job_id, (state, gpu, time, tries) in rows.items():
            _, began, ended, where, *_ = jobs[job_id][15][-1]
            assert (state, gpu, time) == (jobs[job_id][1], where, clock(ended - began))
            assert jobs[job_id][6] == (int(tries) if tries.isdecimal() else 1)

    queue_dir = queue_dirs.QueueDir(str(night.path), str(night.path))
    play(steps, queue_dir, size=(200, 60), claims=night.box.claims)


def test_the_page_shows_these_numbers(night: Night) -> None:
    page = WebPage(night.box, "-q", "list")
    first = page.events("?order=id")[0]
    page.server.signal(signal.SIGINT)
    found = PageReader("".join(first["parts"].values()))
    for line in night.box.gpusched("status", "list").out.splitlines()[1:4]:
        assert " ".join(line.split()) in found.text
    jobs = data_of(night.page)["jobs"]
    assert first["rows"] == [f"j{job[0]}" for job in jobs]
    for job in jobs:
        _, began, ended, where, *_ = job[15][-1]
        cells = PageReader(first["parts"][f"j{job[0]}"]).text.split()
        assert cells[:4] == [str(job[0]), job[1], where, clock(ended - began)]
        assert job[6] == (int(cells[4]) if cells[4].isdecimal() else 1)
    assert page.server.wait().code == 0


def test_prometheus_and_the_table_say_so_too(night: Night) -> None:
    usage, values = night.ask("usage")["total"], defaultdict[tuple[str, str], float](float)
    for family in text_string_to_metric_families(night.prometheus):
        for sample in family.samples:
            values[sample.name, sample.labels.get("state", "")] += sample.value
    assert (values["gpusched_jobs", "succeeded"], values["gpusched_jobs", "failed"]) == (36, 4)
    assert values["gpusched_attempts_total", ""] == usage["attempts"]
    assert values["gpusched_gpu_seconds_total", ""] == pytest.approx(usage["gpu_hours"] * 3600)
    assert values["gpusched_dispatcher_up", ""] == 0 and "simjob" not in night.prometheus
    parquet = pytest.importorskip("pyarrow.parquet")
    assert night.box.gpusched("usage", "list", "--parquet", "a.parquet").code == 0
    table = parquet.read_table(night.box.work / "a.parquet").to_pylist()
    assert len(table) == usage["attempts"]
    assert sum(row["runtime_s"] for row in table) == pytest.approx(usage["job_hours"] * 3600)


def test_the_samples_agree_with_the_attempts(night: Night) -> None:
    story, uuids = night.story, [night.box.uuid(n) for n in range(4)]
    times = gpu_times(story.stretches)
    assert list(times) == uuids
    recorded_s = sum(time.working_s + time.held_s for time in times.values())
    assert recorded_s == pytest.approx(story.report.starts[-1].gpu_s, rel=0.25)
    assert times[uuids[3]].others_s > 2
    assert {who for each in story.stretches for who in each.gpus[uuids[3]].who} == {"bo's simjob"}
    assert sum(time.idle.get("checking", 0) for time in times.values()) > 0
    waits = waits_by_kind(story)
    waited_s = sum(waits.values())
    assert waits.get("unrecorded", 0.0) < waited_s / 5 and {"devices", "dependency"} & waits.keys()
    found = {track.label: track for track in tracks(story, TimeScale(story.began_at, story.ended_at))}
    assert max(track.lanes for track in found.values()) > 1  # packed
    assert {bar.kind for track in found.values() for bar in track.bars} == {"succeeded", "failed", "retried"}
    assert "others" in {bar.kind for bar in found["GPU 3"].background}


def test_a_browser_runs_the_script_of_the_page(night: Night, tmp_path: Path) -> None:
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("there is no chromium here")
    words = [chromium, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}"]
    words += ["--virtual-time-budget=5000", "--dump-dom", f"file://{night.path}/report.html"]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert "40 of 40 jobs" in ended.stdout
    assert len(re.findall(r'<tr tabindex="0">', ended.stdout)) == 40


def test_what_was_sampled_survives_a_kill(tmp_path: Path) -> None:
    with Box(tmp_path, "2") as box:
        run = box.start("run", box.write(f"{SIMJOB} --hold 60"))
        path = box.queue() / "samples.jsonl"
        wait_for(lambda: path.exists() and path.read_bytes().count(b"\n") > 2)
        run.signal(signal.SIGKILL)
        run.wait()
        before = samples.read(str(path))
        with path.open("ab") as file:
            file.write(b"[1760000000.0,17600")  # a line that it was writing
        again = box.start("run", "list.txt")
        wait_for(lambda: len(samples.read(str(path))) > len(before))
        again.signal(signal.SIGTERM)
        again.wait()
        assert samples.read(str(path))[: len(before)] == before and path.stat().st_mode & 0o777 == 0o600
        story = read_story(queue_dirs.QueueDir(str(box.queue()), str(box.queue())))
        assert sum(time.working_s for time in gpu_times(story.stretches).values()) > 0
