"""`gpusched esd` as a user runs it, on simulated GPUs: a small list, killed and resumed, and lists with broken rows."""

from __future__ import annotations

import contextlib
import csv
import json
import os
import random
import re
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support import tiny_models
from tests.support.box import CASES, Box, Ended, Running, wait_for

pytest.importorskip("torch")
pytestmark = pytest.mark.slow

ENVIRONMENT = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "GPUSCHED_MAX_JOBS_PER_GPU": "1"}
VARYING = {"seconds", "peak_memory_bytes", "peak_gpu_bytes"}
FILES = re.compile(r"(per_model_csv|spectra)/[^/]+|skipped\.csv")


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    with Box(tmp_path, gpus="2", environment=ENVIRONMENT) as box:
        yield box


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Box, Ended]]:
    """A box on which the list of tinymodels was run to its end."""
    with Box(tmp_path_factory.mktemp("whole"), gpus="2", environment=ENVIRONMENT) as box:
        tiny_models.build(box.work)
        yield box, box.gpusched("esd", "--model-list", "atlas.csv")


def results(box: Box, directory: str = "esd_results") -> dict[str, Any]:
    """What lies in an output directory, without what takes its time, or what a killed process was writing."""
    found: dict[str, Any] = {}
    place = box.work / directory
    for path in sorted(place.rglob("*")):
        name = str(path.relative_to(place))
        if FILES.fullmatch(name):
            found[name] = path.read_bytes().hex()
        elif name.startswith("records/") and ".json.tmp" not in name:
            record = json.loads(path.read_text())
            found[name] = {key: value for key, value in record.items() if key not in VARYING}
    for row in summary(box, directory):
        found[row["name"]] = {key: value for key, value in row.items() if key not in VARYING}
    return found


def summary(box: Box, directory: str = "esd_results") -> list[dict[str, str]]:
    return list(csv.DictReader((box.work / directory / "esd_results_summary.csv").read_text().splitlines()))


def test_a_list_with_adapters_a_broken_and_a_missing_model(whole: tuple[Box, Ended]) -> None:
    box, ended = whole
    assert ended.code == 1
    rows = summary(box)
    assert [(row["name"], row["success"], row["error_stage"] in ("resolve", "load", "download")) for row in rows] == [
        ("tiny/one", "true", False),
        ("tiny/one-lora", "true", False),
        ("tiny/cut", "false", True),
        ("tiny/two", "true", False),
        ("tiny/missing", "false", True),
        ("tiny/two-lora", "true", False),
    ]
    assert "4 done, 2 failed of 6 models" in ended.out
    assert "Traceback" not in ended.text
    alphas = {row["name"]: row["alpha_mean"] for row in rows}
    assert alphas["tiny/one"] != alphas["tiny/one-lora"], "the adapter is merged"
    names = {path.name for path in (box.work / "esd_results/per_model_csv").iterdir()}
    assert names == {"tiny--one.csv", "tiny--one-lora.csv", "tiny--two.csv", "tiny--two-lora.csv"}
    page = (box.work / "esd_results/report.html").read_text()
    assert "tiny/cut" in page and "per_model_csv/tiny--one-lora.csv" in page
    progress = [json.loads(row.last.progress) for row in box.jobs("esd_results") if row.state == "succeeded"]
    assert all(told["done"] == told["total"] > 10 and told["unit"] == "layers" for told in progress)
    # a model that is done is not run again, and one that failed is reported and not retried
    again = box.gpusched("esd", "--model-list", "atlas.csv")
    assert again.code == 1
    assert "done already: 4 of 6" in again.err and "not retried: 2 of 6" in again.err and "--retry-failed" in again.err
    assert [len(row.attempts) for row in box.jobs("esd_results")] == [1] * 6
    quiet = box.gpusched("esd", "--model-list", "atlas.csv", "--quiet")
    assert (quiet.code, quiet.text) == (1, "")


def test_quiet_beside_a_dispatcher_prints_nothing(whole: tuple[Box, Ended], box: Box) -> None:
    shutil.copytree(whole[0].work / "tiny", box.work / "tiny")
    shutil.copy(whole[0].work / "atlas.csv", box.work)
    running = box.start("esd", "--model-list", "atlas.csv")
    wait_for(lambda: box.running("esd_results"), "a job")
    again = box.gpusched("esd", "--model-list", "atlas.csv", "--quiet")
    assert (again.code, again.text) == (75, "")
    running.signal(signal.SIGTERM)
    running.wait()


def has_begun(box: Box, running: Running) -> bool:
    """Return True once a job runs, or has done so: all may be over after a kill."""
    return bool(box.running("esd_results")) or running.process.poll() is not None


def test_a_run_that_is_killed_twice_goes_on_to_the_same_files(whole: tuple[Box, Ended], box: Box) -> None:
    done, _ = whole
    for name in ("tiny", "atlas.csv"):
        source = done.work / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, box.work / name)
    for victims in ("the dispatcher", "everything"):
        running = box.start("esd", "--model-list", "atlas.csv")
        wait_for(partial(has_begun, box, running), "a job, or the end")
        moment = random.uniform(0.0, 2.5)  # the whole of it takes some 6 s
        print(f"killed {victims} after {moment:.2f} s")
        time.sleep(moment)
        for pid in box.processes() if victims == "everything" else [running.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        running.wait()
    ended = box.gpusched("esd", "--model-list", "atlas.csv")
    assert ended.code == 1, ended.text
    expected = json.loads(json.dumps(results(done)).replace(str(done.work), str(box.work)))
    assert results(box) == expected


def test_case_47_through_the_verb(box: Box) -> None:
    for name in ("47-atlas.csv", "47-atlas-alt.csv"):
        shutil.copy(CASES / "esd-47" / name, box.work)
    tiny_models.model(box.work / "acme/tiny", 1)
    tiny_models.adapter(box.work / "lab1/tiny-lora", "acme/tiny", 2)
    tiny_models.model(box.work / "lab4/thing", 3)
    ended = box.gpusched("esd", "--model-list", "47-atlas-alt.csv", "--layers", "q_proj")
    assert ended.code == 0, ended.text
    alphas = {row["name"]: row["alpha_mean"] for row in summary(box)}
    assert list(alphas) == ["acme/tiny", "lab1/tiny-lora"] and len(set(alphas.values())) == 2
    # the same models in another list are done already, and what is no adapter is to be loaded as it is
    ended = box.gpusched("esd", "--model-list", "47-atlas.csv", "--layers", "q_proj", "--dry-run", "--json")
    assert ended.code == 0 and "done already: 2 of 6" in ended.err
    jobs = [job["command"].split() for job in json.loads(ended.out)["jobs"] if job["would"] == "add"]
    assert [words[words.index("--model") + 1] for words in jobs] == [
        *("lab2/tiny_ft", "lab3/tiny-q4", "lab4/thing", "acme/other")
    ]
    assert not {"adapter", "lora", "peft"} & {words[words.index("--relation") + 1] for words in jobs}
    (box.work / "bad.csv").write_text("model,source_model\nacme/tiny,\n")
    ended = box.gpusched("esd", "--model-list", "bad.csv")
    assert ended.code == 2 and "the columns are: model, source_model" in ended.err and "full_name" in ended.err
    # a single model takes nothing from the list, and what the list left is in the summary too
    ended = box.gpusched("esd", "--single-model", "lab4/thing", "--layers", "k_proj", "--json", "--gpus-per-job", "0")
    assert ended.code == 0, ended.text
    told = json.loads(ended.out)
    assert [model["name"] for model in told["models"]] == ["lab4/thing", "acme/tiny", "lab1/tiny-lora"]
    assert {row.state for row in box.jobs("esd_results")} == {"succeeded"}


def test_case_51_through_the_verb(box: Box) -> None:
    shutil.copytree(CASES / "esd-51", box.work, dirs_exist_ok=True)
    ended = box.gpusched("esd", "--model-list", "51-mixed.csv", HF_TOKEN="hf_abcdefghijklmnopqrstuvwxyz123456")
    assert ended.code == 1
    rows = {row["name"]: row for row in summary(box)}
    assert {name for name, row in rows.items() if row["success"] == "true"} == {"51-repos/good"} or {
        name for name, row in rows.items() if row["success"] == "true"
    } == {"51-repos/good", "51-repos/nan"}
    for name in ("acme/gated-model", "51-repos/cut", "acme/no-such-repo", "51-repos/lfs", "51-repos/empty"):
        assert rows[name]["error_stage"] and rows[name]["error_reason"], name
        assert not (box.work / f"esd_results/per_model_csv/{name.replace('/', '--')}.csv").exists()
    assert "pointer" in rows["51-repos/lfs"]["error_reason"]
    assert [len(row.attempts) for row in box.jobs("esd_results")] == [1] * 7
    assert "51-repos/good is in line 2 and in line 9: it is analysed once" in ended.err
    said = ended.text + "".join(
        path.read_text("utf-8", "replace")
        for path in (box.work / "esd_results").rglob("*")
        if path.suffix != ".npz" and path.is_file()
    )
    assert "hf_abc" not in said and "NaN" not in said.replace("holds NaN", "")


def test_what_is_missing_or_wrong_is_said_before_anything_runs(box: Box) -> None:
    (box.work / "hide").mkdir()
    (box.work / "hide/sitecustomize.py").write_text(
        "import importlib.util as u\nfind = u.find_spec\n"
        "u.find_spec = lambda name, *rest: None if name == 'torch' else find(name, *rest)\n"
    )
    hidden = str(box.work / "hide")
    ended = box.gpusched("esd", "--single-model", "x", PYTHONPATH=hidden)
    assert ended.code == 3
    assert "not installed here: torch\n  to install them: " in ended.err and "pip install torch\n" in ended.err
    ended = box.gpusched("esd", "--model-list", "none.csv", PYTHONPATH=hidden)  # what is wrong is not hidden by it
    assert ended.code == 2 and "none.csv: cannot be read" in ended.err
    ended = box.gpusched("esd", "--single-model", "x", "--gpu-list", "9", PYTHONPATH=hidden)
    assert ended.code == 2 and "9" in ended.err and "torch" not in ended.err
    for words, said in (
        (["--model-list", "none.csv"], "none.csv: cannot be read"),
        (["--model-list", "a", "--single-model", "b"], "a list and a single model are named"),
        (["--single-model", "a", "--layers", "("], "must be a regular expression"),
        ([], "no models are named"),
    ):
        ended = box.gpusched("esd", *words)
        assert ended.code == 2 and said in ended.err, words
    (box.work / "file").touch()
    ended = box.gpusched("esd", "--single-model", "a", "--output-dir", "file/out")
    assert ended.code == 3 and "file/out: cannot be written: Not a directory" in ended.err
    assert not (box.work / "esd_results").exists() and not (box.work / "gpusched-runs").exists()


LIBRARY = """
from gpusched.api import EsdConfig, EsdExperiment

class Mine(EsdExperiment):
    def build_command(self, row):
        return ["sh", "-c", f"echo {row.name} $CUDA_VISIBLE_DEVICES > seen-{row.line}"]

    def summarise(self):
        print("summarised")
        return super().summarise()

config = EsdConfig(model_list="atlas.csv", output_dir="out", gpu_list=[1], gpu_memory_threshold=500, max_checks=1)
mine = Mine(config)
print(mine.run(), [result.name for result in mine.summary.results])
"""


def test_the_library_runs_an_experiment(box: Box) -> None:
    box.write("full_name", "acme/a", "acme/b", name="atlas.csv")
    ended = box.spawn("-c", LIBRARY, program=[sys.executable]).wait()
    assert ended.text == "summarised\n1 ['acme/a', 'acme/b']\n"  # its commands leave no record
    assert [box.read("seen-2"), box.read("seen-3")] == ["acme/a 1\n", "acme/b 1\n"]
    assert [row["error_stage"] for row in summary(box, "out")] == ["job", "job"]
