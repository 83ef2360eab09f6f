"""What an experiment of spectral analysis plans: jobs, budgets, what is done, what has failed, and its summary."""

from __future__ import annotations

import csv
import json
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from gpusched.commands.esd.command_line import stage_parser

from gpusched.cli.features.esd import esd
from gpusched.common import libraries
from gpusched.common.errors import EXIT_OK, EXIT_SOME_FAILED, GpuschedError
from gpusched.common.file_identity import describe_file
from gpusched.common.option_table import options_of
from gpusched.common.weights.hub_headers import Model
from gpusched.common.weights.tensor_headers import Shapes, TensorShape
from gpusched.core.jobs.reconcile import StoredJob, identity
from gpusched.core.model import MIB, JobState
from gpusched.esd import jobs
from gpusched.esd.backend import EsdBackend
from gpusched.esd.config import EsdConfig
from gpusched.esd.experiment import EsdExperiment
from gpusched.esd.model_list import ModelRow
from gpusched.esd.model_record import CONVENTION, file_stem
from gpusched.esd.options import AnalysisOptions, EsdOption
from gpusched.esd.report import read_results
from gpusched.lists.joblist import JobFile

HEAD = "full_name,source_model,base_model_relation"
UP = TensorShape("up", (11008, 4096), "BF16")


class NoQueue:
    """The directory of a queue that was never made."""

    def exists(self) -> bool:
        return False


@dataclass
class FakeBackend(EsdBackend):
    """Runs nothing: `ends` says how each job ends, by name."""

    output: Path
    cards: Sequence[int] = (80_000 * MIB,)
    known: Mapping[str, Shapes] = field(default_factory=dict)
    ends: Mapping[str, JobState] = field(default_factory=dict)
    jobs: dict[tuple[bytes, int], tuple[str, JobState]] = field(default_factory=dict)
    messages: list[str] = field(default_factory=list)
    requests: list[Model] = field(default_factory=list)
    ran: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.notify = self.messages.append
        self.queue_dir: Any = NoQueue()

    def close(self) -> None:
        pass

    def stored_jobs(self) -> Sequence[StoredJob]:
        return [StoredJob(n, *key, state, "") for n, (key, (_, state)) in enumerate(self.jobs.items())]

    def device_budgets(self) -> Sequence[int]:
        return self.cards

    def jobs_at_once(self) -> int:
        return 2

    def read_shapes(self, models: Collection[Model]) -> Mapping[Model, Shapes]:
        self.requests += models
        return {model: self.known.get(model[0], Shapes(why_not="it is not here")) for model in models}

    def run_jobs(self, jobs: JobFile, *, complete: bool) -> int:
        failed = False
        for spec in jobs.specs:
            key, name = (identity(spec), spec.occurrence), spec.attributes.name
            if key in self.jobs and self.jobs[key][1] is not JobState.QUEUED:
                failed |= self.jobs[key][1] is JobState.FAILED
                continue
            state = self.ends.get(name, JobState.SUCCEEDED)
            self.jobs[key] = name, state
            self.ran.append(name)
            if state is JobState.SUCCEEDED:
                leave(self.output, name)
            failed |= state is JobState.FAILED
        return EXIT_SOME_FAILED if failed else EXIT_OK

    def read_outcomes(self) -> Mapping[str, str]:
        found = {name: f"{state.value}: exit 9" for name, state in self.jobs.values()}
        return {name: text for name, text in found.items() if not text.startswith("succeeded")}


def leave(output: Path, name: str, *, success: bool = True, **more: Any) -> None:
    """What an analysis leaves of a model."""
    stem = file_stem(name)
    for room in ("records", "per_model_csv"):
        (output / room).mkdir(parents=True, exist_ok=True)
    table = more.pop("table", f"longname,alpha\n{name},3.0\n")
    (output / f"per_model_csv/{stem}.csv").write_text(table)
    record = {
        "name": name,
        "success": success,
        "convention": CONVENTION,
        "revision": "",
        "options": AnalysisOptions().as_record(),
        "layers": 4,
        "alpha_mean": 3.0,
        "skipped": [],
        "csv": {"size": len(table)},
        "error": None if success else {"stage": "load", "reason": "cut\x1b[2J short"},
        **more,
    }
    (output / f"records/{stem}.json").write_text(json.dumps(record))


class Lab:
    """A list and an output directory."""

    def __init__(self, directory: Path, *lines: str) -> None:
        self.list = directory / "atlas.csv"
        self.output = directory / "out"
        self.list.write_text("\n".join([HEAD, *lines]) + "\n")
        self.backend = FakeBackend(self.output)

    def experiment(self, **options: Any) -> EsdExperiment:
        return EsdExperiment(EsdConfig(model_list=str(self.list), output_dir=str(self.output), **options), self.backend)

    def summary(self) -> list[dict[str, str]]:
        return list(csv.DictReader((self.output / "esd_results_summary.csv").read_text().splitlines()))


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path, "acme/a,,base", "acme/b,,base", "lab/a-lora,acme/a,adapter")


def test_one_job_a_model_and_a_summary_in_the_order_of_the_list(lab: Lab) -> None:
    leave(lab.output, "lab/a-lora")  # without its base in the options: of another analysis
    experiment = lab.experiment()
    todo = experiment.find_todo()
    assert [spec.attributes.name for spec in todo.jobs.specs] == ["acme/a", "lab/a-lora", "acme/b"]
    assert [spec.line for spec in todo.jobs.specs] == [2, 4, 3]
    assert experiment.run() == EXIT_OK
    assert [row["name"] for row in lab.summary()] == ["acme/a", "acme/b", "lab/a-lora"]
    assert [row["success"] for row in lab.summary()] == ["true", "true", ""]
    assert lab.summary()[2]["error_stage"] == "waiting"


def test_what_is_done_is_reported_and_not_run_again(lab: Lab) -> None:
    leave(lab.output, "acme/a")
    leave(lab.output, "acme/b", revision="v2")
    experiment = lab.experiment()
    experiment.run()
    assert lab.backend.ran == ["acme/b", "lab/a-lora"]
    assert "done already: 1 of 3 (--overwrite analyses them again)" in lab.backend.messages


@pytest.mark.parametrize(
    "spoil",
    [
        lambda output: (output / "per_model_csv/acme--a.csv").unlink(),
        lambda output: (output / "per_model_csv/acme--a.csv").write_text("cut"),
        lambda output: (output / "records/acme--a.json").write_text("{"),
        lambda output: leave(output, "acme/a", convention=CONVENTION + 1),
        lambda output: leave(output, "acme/a", options=AnalysisOptions(bins=7).as_record()),
    ],
)
def test_what_is_not_whole_or_otherwise_made_is_run_again(lab: Lab, spoil: Any) -> None:
    lab.experiment().run()
    assert lab.backend.ran == ["acme/a", "lab/a-lora", "acme/b"]
    spoil(lab.output)
    lab.backend.ran.clear()
    lab.experiment().run()
    assert "acme/a" in lab.backend.ran and "acme/b" not in lab.backend.ran


def test_a_model_whose_files_have_changed_is_analysed_again(lab: Lab, tmp_path: Path) -> None:
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(b"one")
    leave(lab.output, "acme/a", files=[describe_file(str(weights))])
    lab.backend.ends = {"acme/a": JobState.QUEUED}
    lab.experiment().run()
    assert "acme/a" not in lab.backend.ran and lab.summary()[0]["success"] == "true"
    weights.write_bytes(b"two")
    lab.experiment().run()
    assert "acme/a" in lab.backend.ran
    assert any("changed since the analysis" in message for message in lab.backend.messages)
    assert (lab.summary()[0]["success"], lab.summary()[0]["alpha_mean"]) == ("", "")
    assert "has changed since" in lab.summary()[0]["error_reason"]


def test_a_partial_model_is_in_no_mean(lab: Lab) -> None:
    leave(lab.output, "acme/a", coverage=0.49)
    leave(lab.output, "acme/b", coverage=0.5)
    lab.experiment().run()
    assert [row["status"] for row in lab.summary()] == ["partial", "done", "waiting"]
    assert [row["alpha_mean"] for row in lab.summary()][:2] == ["", "3.0"]


@pytest.mark.parametrize(
    ("more", "is_old"),
    [
        ({}, False),
        ({"convention": 2, "dtypes": {"uint32": {}}}, False),
        ({"dtypes": {"uint32": {}}}, True),
        ({"skipped": [{"tensor": "lm_head.weight", "reason": "tied to wte.weight"}]}, True),
        ({"skipped": [{"tensor": "wte.weight", "reason": "an embedding (…)"}]}, False),
        ({"skipped": [{"tensor": "block.0.q.weight", "reason": "an embedding (…)"}]}, True),
        ({"table": "longname,dtype,fit_xmin,xmax\nq.weight,bfloat16,1.0,1.01\n"}, True),
        ({"table": "longname,dtype,fit_xmin,xmax\nq.weight,bfloat16,1.0,2.0\n"}, False),
        ({"table": "longname,dtype,fit_xmin,xmax\nunet.lora_down.weight,bfloat16,1.0,2.0\n"}, True),
    ],
)
def test_results_of_older_rules_are_marked_and_redone_on_request(lab: Lab, more: dict[str, Any], is_old: bool) -> None:
    leave(lab.output, "acme/a", **{"convention": 1, **more})
    leave(lab.output, "acme/b", convention=1)
    experiment = lab.experiment()
    experiment.run()
    assert "acme/a" not in lab.backend.ran
    assert lab.summary()[0]["status"] == ("old rules" if is_old else "done")
    assert (lab.summary()[0]["alpha_mean"] == "") is is_old
    assert dict(read_results(experiment)[1]).get("old rules", "").endswith("--redo-old analyses these again") is is_old
    lab.experiment(redo_old=True).run()
    assert ("acme/a" in lab.backend.ran) is is_old and "acme/b" not in lab.backend.ran


def test_a_failure_is_reported_and_only_retried_on_request(lab: Lab) -> None:
    leave(lab.output, "acme/a", success=False)
    lab.backend.ends = {"acme/b": JobState.FAILED}
    assert lab.experiment().run() == EXIT_SOME_FAILED
    assert lab.backend.ran == ["acme/b", "lab/a-lora"]
    rows = {row["name"]: row for row in lab.summary()}
    assert (rows["acme/a"]["error_stage"], rows["acme/a"]["error_reason"]) == ("load", "cut\\x1b[2J short")
    assert (rows["acme/b"]["error_stage"], rows["acme/b"]["error_reason"]) == ("job", "failed: exit 9")
    lab.backend.ran.clear()
    lab.backend.messages.clear()
    assert lab.experiment().run() == EXIT_SOME_FAILED
    assert lab.backend.ran == ["lab/a-lora"]  # whose record is of another analysis here
    assert any(
        text == "failed before and not retried: 2 of 3 (--retry-failed does that)" for text in lab.backend.messages
    )
    assert {spec.attributes.name for spec in lab.experiment(retry_failed=True).find_todo().jobs.specs} >= {
        "acme/a",
        "acme/b",
    }


def test_what_has_failed_alone_needs_no_gpu(tmp_path: Path) -> None:
    lab = Lab(tmp_path, "acme/a,,base")
    lab.backend.ends = {"acme/a": JobState.FAILED}
    lab.experiment().run()
    lab.backend.device_budgets = lambda: pytest.fail("asked for GPUs")  # type: ignore[method-assign]
    todo = lab.experiment().find_todo()
    assert len(todo.jobs.specs) == 1 and not todo.run
    assert lab.experiment().run() == EXIT_SOME_FAILED


def test_overwrite_that_fails_is_not_taken_for_the_success_of_before(lab: Lab) -> None:
    lab.experiment().run()
    lab.backend.ends = {"acme/a": JobState.FAILED}
    for _ in range(2):
        experiment = lab.experiment(overwrite=True)
        assert experiment.run() == EXIT_SOME_FAILED
        assert [(result.name, result.stage, result.reason) for result in experiment.summary.failed] == [
            ("acme/a", "job", "failed: exit 9")
        ]
        assert experiment.summary.listed[1].success
    experiment = lab.experiment()
    assert experiment.run() == EXIT_OK, "what it left before is whole, and counts when nothing else is asked for"
    assert experiment.summary.listed[0].success


def test_overwrite_goes_on_where_it_was_stopped(lab: Lab) -> None:
    for name in ("acme/a", "acme/b"):
        leave(lab.output, name)
    lab.experiment(overwrite=True).run()
    assert lab.backend.ran == ["acme/a", "lab/a-lora", "acme/b"]
    todo = lab.experiment(overwrite=True).find_todo()
    assert len(todo.run) == 3, "all has ended: it is done once more"
    assert {spec.occurrence for spec in todo.jobs.specs} == {2}
    key = next(iter(lab.backend.jobs))
    lab.backend.jobs[key] = "acme/a", JobState.RUNNING  # as if the dispatcher had been killed
    todo = lab.experiment(overwrite=True).find_todo()
    assert [row.name for row in todo.run] == ["acme/a"]
    assert [row.name for row in todo.done] == ["acme/b", "lab/a-lora"]


def test_what_a_colleague_broke_is_one_row_and_the_summary_has_what_is_not_listed(tmp_path: Path) -> None:
    lab = Lab(tmp_path, "acme/a,,base", "-x,,base")
    leave(lab.output, "elsewhere/c")
    (lab.output / "records/junk.json").write_text("[]")
    assert lab.experiment().run() == EXIT_SOME_FAILED
    assert [(row["name"], row["success"], row["notes"]) for row in lab.summary()] == [
        ("acme/a", "true", ""),
        ("'-x", "false", ""),
        ("elsewhere/c", "true", "not in this list"),
    ]


def test_only_a_few_of_many_repeated_lines_are_reported(tmp_path: Path) -> None:
    lab = Lab(tmp_path, *["acme/a,,base"] * 200)
    experiment = lab.experiment()
    experiment.announce(experiment.find_todo())
    assert len(lab.backend.messages) == 7
    assert "and 194 more" in lab.backend.messages


def test_models_without_pictures_run_again_to_be_drawn(lab: Lab) -> None:
    lab.experiment(plots=True).run()
    jobs = lab.experiment(plots=True).find_todo().jobs.specs
    assert [(spec.attributes.name, spec.occurrence) for spec in jobs][::2] == [("acme/a", 2), ("acme/b", 2)]


def test_a_model_that_has_failed_stays_in_the_list_when_pictures_are_wanted_later(lab: Lab) -> None:
    lab.backend.ends = {"acme/b": JobState.FAILED}
    lab.experiment().run()
    todo = lab.experiment(plots=True).find_todo()
    assert [row.name for row in todo.failed] == ["acme/b"]
    assert [(spec.attributes.name, spec.occurrence) for spec in todo.jobs.specs if spec.occurrence == 1][-1] == (
        "acme/b",
        1,
    )
    again = lab.experiment(plots=True, retry_failed=True).find_todo().jobs.specs
    assert [b"--plots" in spec.command for spec in again if spec.attributes.name == "acme/b"] == [True]
    over = lab.experiment(overwrite=True).find_todo().jobs.specs
    assert not {spec.text for spec in over} & {spec.text for spec in again}


def test_what_was_skipped_is_listed(lab: Lab) -> None:
    skipped = [{"tensor": "w\n1", "shape": "3x4", "dtype": "I8", "reason": "quantised"}]
    leave(lab.output, "acme/a", skipped=skipped)
    lab.experiment().summarise()
    rows = list(csv.reader((lab.output / "skipped.csv").read_text().splitlines()))
    assert rows == [["model", "tensor", "shape", "dtype", "reason"], ["acme/a", "w 1", "3x4", "I8", "quantised"]]


# ---- memory ----------------------------------------------------------------------------------------


def test_budgets_follow_the_shapes_of_the_base(lab: Lab) -> None:
    lab.backend.known = {"acme/a": Shapes((UP,))}
    specs = {spec.attributes.name: spec.attributes for spec in lab.experiment().find_todo().jobs.specs}
    assert specs["acme/a"].mem_bytes == specs["lab/a-lora"].mem_bytes
    assert 1000 * MIB < (specs["acme/a"].mem_bytes or 0) < 2000 * MIB
    assert specs["acme/b"].mem_bytes is None
    assert sorted(lab.backend.requests) == [("acme/a", ""), ("acme/b", "")]
    assert "each gets a GPU to itself (acme/b: it is not here" in lab.backend.messages[-1]


def test_a_layer_too_large_for_every_card_is_said_and_the_model_runs_alone(lab: Lab) -> None:
    lab.backend.known = {"acme/a": Shapes((UP,))}
    lab.backend.cards = (1000 * MIB, 800 * MIB)
    todo = lab.experiment().find_todo()
    assert {spec.attributes.mem_bytes for spec in todo.jobs.specs} == {None}
    said = next(text for text in lab.backend.messages if text.startswith("acme/a:"))
    assert "its largest layer, up (11008×4096), needs" in said and "offers 1000 MiB" in said and "on the CPU" in said


def test_without_gpus_nothing_is_asked(lab: Lab) -> None:
    lab.backend.cards = ()
    assert all(spec.attributes.mem_bytes is None for spec in lab.experiment().find_todo().jobs.specs)
    assert not lab.backend.requests


# ---- commands and options --------------------------------------------------------------------------


def test_a_command_says_what_is_not_the_default(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    experiment = lab.experiment(layers="attn|it's", bins=50, farms=True, parallel_gpu=False)
    row = replace(experiment.models.rows[2], revision="v1", name="lab/a-lora@v1")
    words = experiment.build_command(row)[1:]
    assert words == [
        *("-m", "gpusched.commands.esd", "--model", "lab/a-lora", "--output-dir", str(lab.output)),
        *("--name", "lab/a-lora@v1", "--source-model", "acme/a", "--relation", "adapter", "--revision", "v1"),
        *("--bins", "50", "--layers", "attn|it's", "--farms", "--no-parallel-gpu"),
    ]
    spec = experiment.find_todo().jobs.specs[0]
    assert shlex.split(spec.command.decode())[0].startswith("OMP_NUM_THREADS=")
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    plain = experiment.find_todo().jobs.specs[0]
    assert plain.command == spec.text + b" --no-parallel-gpu", "neither that nor the cores make it another job"
    assert plain.text == spec.text


def test_every_option_of_the_stage_can_be_given_to_the_verb() -> None:
    taken = {option for action in stage_parser(AnalysisOptions)._actions for option in action.option_strings}
    given = {option for parameter in esd.params for option in parameter.opts}
    assert taken - given == {"--model", "--name", "-h", "--help"}  # a row of the list has these


@pytest.mark.parametrize("unchanged", [("delta", "delta_vectors"), ("farms", "randomize")])  # they exclude each other
def test_every_option_of_the_analysis_reaches_the_stage(lab: Lab, unchanged: tuple[str, ...]) -> None:
    texts = {"layers": "q", "device": "cpu", "cache_dir": "/c", "disk_reserve": "1G"}

    def another(each: EsdOption) -> Any:
        """Return a value that is valid and not the default."""
        if each.choices:
            return each.choices[each.choices[0] == each.default]
        if isinstance(each.default, bool):
            return not each.default
        return texts[each.name] if isinstance(each.default, str) else each.default + 3

    changed = {each.name: another(each) for each in options_of(AnalysisOptions) if each.name not in unchanged}
    experiment = lab.experiment(**changed)
    words = experiment.build_command(experiment.models.rows[0])[3:]
    read = vars(stage_parser(AnalysisOptions).parse_args(words))
    assert {name: read[name] for name in changed} == changed


def test_commands_can_be_overridden(lab: Lab) -> None:
    class Mine(EsdExperiment):
        def build_command(self, row: ModelRow) -> list[str]:
            return ["python", "mine.py", row.model]

    specs = Mine(EsdConfig(model_list=str(lab.list), output_dir=str(lab.output)), lab.backend).find_todo().jobs.specs
    assert specs[0].text == b"python mine.py acme/a"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "no models are named"),
        ({"model_list": "a", "single_model": "b"}, "a list and a single model are named"),
        ({"single_model": "a", "output_dir": ""}, "--output-dir: no directory"),
        ({"single_model": "a", "bins": 0}, "--bins 0"),
        ({"single_model": "a", "min_evals": 1}, "--min-evals 1"),
        ({"single_model": "a", "evals_thresh": float("nan")}, "--evals-thresh nan"),
        ({"single_model": "a", "layers": "("}, "must be a regular expression"),
        ({"single_model": "a", "solver": "quick"}, "--solver quick"),
        ({"single_model": "a", "device": "gpu"}, "--device gpu"),
        ({"single_model": "a", "disk_reserve": "much"}, "--disk-reserve much"),
    ],
)
def test_options_that_cannot_be_meant(options: dict[str, Any], said: str) -> None:
    with pytest.raises(GpuschedError, match=said.replace("(", r"\(")):
        EsdConfig(**options).check()


def test_the_settings_of_a_run_are_texts() -> None:
    config = EsdConfig(single_model="a", gpu_list=[0, 1], gpu_memory_threshold=500, settings={"poll_interval": 1})
    assert config.flags == {"gpu_list": "0,1", "gpu_mem_threshold": 500, "poll_interval": 1}
    assert config.words == ["esd", "--single-model", "a", "--output-dir", "esd_results"]
    words = EsdConfig(model_list="a.csv", overwrite=True, parallel_gpu=False, layers="-x").words[1:]
    assert words == [
        *("--model-list", "a.csv", "--layers=-x", "--no-parallel-gpu", "--overwrite"),
        *("--output-dir", "esd_results"),
    ]


def test_missing_libraries_are_named_for_the_models_that_are_left(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(libraries, "missing", list)
    config = EsdConfig(model_list=str(lab.list), output_dir=str(lab.output), plots=True)
    with pytest.raises(
        GpuschedError, match="not installed here: torch, safetensors, numpy, matplotlib, huggingface_hub"
    ):
        EsdExperiment(config, lab.backend).find_todo()
    with pytest.raises(GpuschedError, match="not installed here: torch, safetensors, numpy\n"):
        jobs.refuse_missing_libraries([ModelRow(str(tmp_path))], EsdConfig(single_model=str(tmp_path)))
