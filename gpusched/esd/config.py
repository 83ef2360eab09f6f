"""The configuration of an experiment of spectral analysis. Reads no argv and no file."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from dataclasses import field as make_field

from gpusched.common.errors import GpuschedError
from gpusched.common.quantities import parse_size
from gpusched.esd.model_record import DEFAULTS

CHOICES = {
    "fix_fingers": ("xmin_mid", "xmin_peak", "DKS"),
    "peak_window": ("near", "legacy"),
    "solver": ("auto", "gram", "svd", "fast"),
}

RUN_FIELDS = frozenset(
    {"retry_failed", "gpu_list", "gpu_memory_threshold", "max_checks", "max_gpus", "log_dir", "settings"}
)


@dataclass(frozen=True)
class EsdConfig:
    """The models of an experiment, the options of their analysis, and the GPUs to use.

    `settings` holds further settings of a run by their names. A configuration is also the source of its jobs: their
    queue belongs to the output directory.
    """

    model_list: str = ""
    single_model: str = ""
    output_dir: str = "esd_results"
    source_model: str = ""  # this and the next two describe single_model; a list has columns for them
    relation: str = ""
    revision: str = ""
    overwrite: bool = False
    retry_failed: bool = False
    fix_fingers: str = DEFAULTS["fix_fingers"]
    evals_thresh: float = DEFAULTS["evals_thresh"]
    bins: int = DEFAULTS["bins"]
    peak_window: str = DEFAULTS["peak_window"]
    solver: str = DEFAULTS["solver"]
    device: str = ""
    parallel_gpu: bool = True
    layers: str = ""
    embeddings: bool = False
    min_evals: int = DEFAULTS["min_evals"]
    farms: bool = False
    randomize: bool = False
    dtype_report: bool = False
    plots: bool = False
    cache_dir: str = ""
    disk_reserve: str = ""
    drop_downloads: bool = False
    gpu_list: Sequence[int | str] | str | None = None
    gpu_memory_threshold: int | None = None  # MiB
    max_checks: int | None = None
    max_gpus: int | None = None
    log_dir: str | None = None
    settings: Mapping[str, object] = make_field(default_factory=dict)

    def check(self) -> None:
        """Raise GpuschedError for a value that makes no sense."""
        if bool(self.model_list) == bool(self.single_model):
            hint = "use --model-list atlas.csv or --single-model gpt2"
            problem = "a list and a single model exclude each other" if self.model_list else "no models are named"
            raise GpuschedError(problem, hint=hint)
        if not self.output_dir:
            raise GpuschedError("no directory is named", where="--output-dir", hint="--output-dir esd_results")
        for name, words in CHOICES.items():
            if getattr(self, name) not in words:
                where = f"{flag(name)} {getattr(self, name)}"
                raise GpuschedError(f"must be one of {', '.join(words)}", where=where)
        if self.device and not re.fullmatch(r"auto|cpu|cuda(:\d+)?", self.device):
            raise GpuschedError("must be auto, cpu, cuda or cuda:N", where=f"--device {self.device}")
        if not 0 <= self.evals_thresh < float("inf"):
            hint = "eigenvalues up to it are left out; the usual value is 1e-5"
            raise GpuschedError("must be a number, at least 0", where=f"--evals-thresh {self.evals_thresh}", hint=hint)
        for name, value, least in (("--bins", self.bins, 1), ("--min-evals", self.min_evals, 2)):
            if value < least:
                raise GpuschedError(f"must be a whole number, at least {least}", where=f"{name} {value}")
        try:
            re.compile(self.layers)
        except re.error as error:
            raise GpuschedError(f"not a regular expression: {error}", where=f"--layers {self.layers}") from None
        if self.disk_reserve:
            try:
                parse_size(self.disk_reserve)
            except ValueError as error:
                raise GpuschedError(f"must be {error}", where=f"--disk-reserve {self.disk_reserve}") from None

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
        words = ["esd"]
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name in RUN_FIELDS or (value == field.default and field.name != "output_dir"):
                continue
            if field.name == "parallel_gpu":
                words.append("--no-parallel-gpu")
            elif value is True:
                words.append(flag(field.name))
            else:
                words += option_words(flag(field.name), value)
        return words

    @property
    def flags(self) -> dict[str, object]:
        """The settings of a run, as `config.load` takes them."""
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


def flag(name: str) -> str:
    """Return the option that sets a field."""
    return "--" + name.replace("_", "-")


def option_words(option: str, value: object) -> list[str]:
    """Return an option and its value as words of a command line, one word where the value begins with a dash."""
    text = str(value)
    return [f"{option}={text}"] if text.startswith("-") else [option, text]


def absolute(path: str) -> str:
    """Return the absolute path, with `~` expanded; an empty path stays empty."""
    return os.path.abspath(os.path.expanduser(path)) if path else ""
