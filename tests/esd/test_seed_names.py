"""Scripts of an earlier program: its names, its fields, and the two methods that they override."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from gpusched.common.errors import EXIT_OK, EXIT_SOME_FAILED, GpuschedError
from gpusched.esd import ESDExperiment, ExperimentConfig
from tests.esd.test_jobs import FakeBackend, leave


class CustomExperiment(ESDExperiment):
    """As its documentation shows it."""

    def _build_esd_command(self, row: Mapping[str, Any]) -> str:
        return super()._build_esd_command(row) + " --custom-arg value && touch done"

    def _print_summary(self) -> None:
        super()._print_summary()
        print("Custom metrics…")


def config(directory: Path, **more: Any) -> ExperimentConfig:
    table = directory / "models.csv"
    table.write_text("full_name,source_model,base_model_relation\nacme/a,,base\nlab/b,acme/a,adapter\n")
    values: dict[str, Any] = {"model_list": str(table), "output_dir": str(directory / "out"), "gpu_list": [0, 1]}
    return ExperimentConfig(mode="esd", **values, gpu_memory_threshold=500, max_checks=10, **more)


def test_its_methods_are_overridden(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    backend = FakeBackend(tmp_path / "out")
    experiment = CustomExperiment(config(tmp_path, overwrite=True), backend)
    commands = [spec.command.decode() for spec in experiment.find_todo().jobs.specs]
    assert all(command.endswith(" --custom-arg value && touch done") for command in commands)
    assert "--source-model acme/a --relation adapter" in commands[1]
    assert experiment.run() == EXIT_OK
    assert (
        capsys.readouterr().out
        == f"1 done, 0 failed of 2 models: {tmp_path}/out/esd_results_summary.csv\nCustom metrics…\n"
    )


def test_its_options_of_the_analysis_are_ours(tmp_path: Path) -> None:
    options = {"fix_fingers": "DKS", "bins": 50, "no_parallel_gpu": True}
    made = config(tmp_path, single_model=None, num_gpus_per_job=2, esd_options=options)
    assert (made.fix_fingers, made.bins, made.parallel_gpu, made.single_model) == ("DKS", 50, False, "")
    assert made.flags["gpus_per_job"] == "2"
    words = shlex.split(ESDExperiment(made, FakeBackend(tmp_path)).find_todo().jobs.specs[0].command.decode())
    assert "--no-parallel-gpu" in words and words[words.index("--fix-fingers") + 1] == "DKS"


@pytest.mark.parametrize(
    ("more", "problem"),
    [({"mode": "custom"}, "is another command"), ({"esd_options": {"bin": 3}}, "unknown options of the analysis: bin")],
)
def test_what_is_not_ours_is_refused(more: dict[str, Any], problem: str) -> None:
    with pytest.raises(GpuschedError, match=problem):
        ExperimentConfig(single_model="acme/a", **more)


def test_a_command_that_leaves_no_record_is_an_error(tmp_path: Path) -> None:
    class Silent(FakeBackend):
        def run_jobs(self, jobs: Any, *, complete: bool) -> int:
            return EXIT_OK

        def read_outcomes(self) -> Mapping[str, str]:
            return {"acme/a": "succeeded", "lab/b": "waits for its turn"}

    experiment = ESDExperiment(config(tmp_path), Silent(tmp_path / "out"))
    assert experiment.run() == EXIT_SOME_FAILED
    states = [(result.success, result.stage, result.reason) for result in experiment.summary.results]
    assert states[0][:2] == (False, "job") and "left no record" in states[0][2]
    assert states[1] == (None, "waiting", "waits for its turn")
    leave(tmp_path / "out", "acme/a")
    assert ESDExperiment(config(tmp_path), Silent(tmp_path / "out")).run() == EXIT_OK
