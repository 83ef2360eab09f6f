"""The configuration of an experiment of spectral analysis. Reads no argv and no file."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from gpusched.common.errors import GpuschedError
from gpusched.common.option_table import options_of, words_of
from gpusched.esd.options import AnalysisOptions, option


@dataclass(frozen=True, kw_only=True)
class EsdConfig(AnalysisOptions):
    """The models of an experiment, the options of their analysis, and the GPUs to use.

    `settings` holds further settings of a run by their names. A configuration is also the source of its jobs: their
    queue belongs to the output directory.
    """

    model_list: str = option("", "Analyse the models of this table.", metavar="CSV")
    single_model: str = option("", "Analyse this model.", metavar="NAME|PATH")
    output_dir: str = option(
        "esd_results", "Keep the results, and what is needed to resume, in this directory.", metavar="DIR"
    )
    source_model: str = option(
        "", "With --single-model: the model that it was made from, the base of an adapter.", metavar="NAME|PATH"
    )
    relation: str = option("", "With --single-model: adapter; any other word means a whole model.", metavar="WORD")
    revision: str = option("", "With --single-model: branch, tag or commit on the hub.", metavar="REV")
    redo_old: bool = option(False, "Analyse again what an older version may have analysed by other rules.")
    retry_failed: bool = False
    gpu_list: Sequence[int | str] | str | None = None
    gpu_memory_threshold: int | None = None  # MiB
    max_checks: int | None = None
    max_gpus: int | None = None
    log_dir: str | None = None
    settings: Mapping[str, object] = field(default_factory=dict)

    def check(self) -> None:
        """Raise GpuschedError for a value that makes no sense."""
        if bool(self.model_list) == bool(self.single_model):
            hint = "use --model-list atlas.csv or --single-model gpt2"
            problem = "a list and a single model are named, and only one of them is taken"
            raise GpuschedError(problem if self.model_list else "no models are named", hint=hint)
        if not self.output_dir:
            raise GpuschedError("no directory is named", where="--output-dir", hint="--output-dir esd_results")
        super().check()

    def plain(self) -> EsdConfig:
        """Return this configuration without the options that change no result, but for `overwrite`."""
        rows = (each for each in options_of(AnalysisOptions) if not (each.changes_numbers or each.changes_table))
        return replace(self, **{each.name: each.default for each in rows if each.name != "overwrite"})

    # ---- the source of the jobs ----

    @property
    def output(self) -> str:
        """The absolute path of the output directory."""
        return absolute(self.output_dir)

    @property
    def stem(self) -> str:
        """The default name of the queue."""
        return os.path.basename(self.output) or "esd"

    @property
    def owner(self) -> bytes:
        """The identity of the queue's source; never equal to a file path."""
        return b"esd " + os.fsencode(self.output)

    @property
    def words(self) -> list[str]:
        """The command line after `gpusched`, without the settings of a run."""
        words = ["esd", *words_of(self, options_of(EsdConfig))]
        return words if "--output-dir" in words else [*words, "--output-dir", self.output_dir]

    @property
    def flags(self) -> dict[str, object]:
        """The settings of a run, as `config.layers.load` takes them."""
        gpus = self.gpu_list
        values: dict[str, object] = {
            "gpu_list": gpus if gpus is None or isinstance(gpus, str) else ",".join(map(str, gpus)),
            "gpu_mem_threshold": self.gpu_memory_threshold,
            "max_checks": self.max_checks,
            "max_gpus": self.max_gpus,
            "log_dir": self.log_dir,
            **self.settings,
        }
        return {name: value for name, value in values.items() if value is not None}


def absolute(path: str) -> str:
    """Return the absolute path, with `~` expanded; an empty path stays empty."""
    return os.path.abspath(os.path.expanduser(path)) if path else ""
