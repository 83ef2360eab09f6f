"""The names and the two methods of an earlier program for the same work, for scripts that were written for it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from gpusched.common.errors import GpuschedError
from gpusched.esd.config import EsdConfig
from gpusched.esd.experiment import EsdExperiment
from gpusched.esd.jobs import stage_command
from gpusched.esd.model_list import ModelRow


@dataclass(frozen=True, kw_only=True)
class ExperimentConfig(EsdConfig):
    """`EsdConfig` with the fields of the earlier program; `esd_options` are options of the analysis by their names."""

    mode: str = "esd"
    commands_file: str | None = None
    num_gpus_per_job: int = 1
    esd_options: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        if self.mode != "esd" or self.commands_file:
            hint = "gpusched run FILE, or gpusched.api.Queue in a script"
            raise GpuschedError(f"mode {self.mode!r} with a file of commands is another command", hint=hint)
        values = dict(self.esd_options or {})
        if "no_parallel_gpu" in values:
            values["parallel_gpu"] = not values.pop("no_parallel_gpu")
        if unknown := sorted(values.keys() - {each.name for each in fields(self)}):
            raise GpuschedError(f"unknown options of the analysis: {', '.join(unknown)}", where="esd_options")
        values |= {name: "" for name in ("model_list", "single_model") if getattr(self, name) is None}
        if self.num_gpus_per_job != 1:
            values["settings"] = {**self.settings, "gpus_per_job": str(self.num_gpus_per_job)}
        for name, value in values.items():
            object.__setattr__(self, name, value)


class ESDExperiment(EsdExperiment):
    """`EsdExperiment` with the methods that scripts override: `_build_esd_command` and `_print_summary`."""

    def build_command(self, row: ModelRow) -> str:
        values = {"full_name": row.model, "source_model": row.source, "base_model_relation": row.relation}
        return self._build_esd_command({**values, "revision": row.revision, "name": row.name})

    def run(self, *arguments: Any) -> int:
        code = super().run(*arguments)
        self._print_summary()
        return code

    def _build_esd_command(self, row: Mapping[str, Any]) -> str:
        """Return the command line that analyses the model of a row of the list, which has the list's columns."""
        columns = ("source_model", "base_model_relation", "revision")
        source, relation, revision = (str(row.get(name) or "") for name in columns)
        model = str(row["full_name"])
        name = str(row.get("name") or model)
        return shlex.join(stage_command(ModelRow(model, source, relation, revision, name=name), self.config))

    def _print_summary(self) -> None:
        """Print how many models are done, and where the summary is."""
        done = sum(result.success is True for result in self.summary.listed)
        counts = f"{done} done, {len(self.summary.failed)} failed of {len(self.summary.listed)} models"
        print(f"{counts}: {self.config.output}/esd_results_summary.csv")
