"""The options of a spectral analysis, each described once.

The fields of `AnalysisOptions` are the table: the command line of the verb, the arguments of the stage, the record of a
model and docs/reference.md are made from them. Reads no argv and knows no model.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial
from typing import Any

from gpusched.common.errors import GpuschedError
from gpusched.common.option_table import Option, check_values, options_of
from gpusched.common.option_table import option as table_option
from gpusched.common.quantities import parse_size
from gpusched.esd.model_record import ADAPTER_RELATIONS


@dataclass(frozen=True, slots=True, kw_only=True)
class EsdOption(Option):
    """The description of one option, and how far it changes results."""

    changes_numbers: bool = False  # so it is in the record: with another value it is another analysis
    changes_table: bool = False  # so it is in the record unless it is the default


option = partial(table_option, kind=EsdOption)
recorded = partial(option, changes_numbers=True)
added = partial(option, changes_table=True)  # recorded only where it is used, so that earlier results stay done


def _check_pattern(text: str | bool) -> None:
    if isinstance(text, bool):
        return
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"a regular expression: {error}") from None


def _check_device(text: str) -> None:
    if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", text):
        raise ValueError("auto, cpu, cuda or cuda:N")


@dataclass(frozen=True, kw_only=True)
class AnalysisOptions:
    """The options of the analysis of one model. Those of `recorded` change its numbers."""

    fix_fingers: str = recorded(
        "xmin_mid", "Begin the tail at the median, the peak, or the best fit.", choices=("xmin_mid", "xmin_peak", "DKS")
    )
    evals_thresh: float = recorded(1e-5, "Leave out eigenvalues up to X.", metavar="X", least=0)
    bins: int = recorded(100, "Look for the peak in a histogram of N bins.", metavar="N", least=1)
    peak_window: str = recorded(
        "near", "Look for the tail of xmin_peak near the peak, or as much published code.", choices=("near", "legacy")
    )
    solver: str = recorded(
        "auto", "Use a Gram matrix, singular values, or float32 (fast).", choices=("auto", "gram", "svd", "fast")
    )
    layers: str = recorded(
        "", "Analyse only tensors whose name matches.", metavar="REGEX", check=_check_pattern, default_text="all"
    )
    embeddings: bool = recorded(False, "Analyse embeddings too.")
    min_evals: int = recorded(2, "Fit no tail to fewer than N eigenvalues.", metavar="N", least=2)
    farms: bool = recorded(False, "Take the spectra of submatrices of one aspect ratio (FARMS).")
    randomize: bool = recorded(False, "Compare with the same entries in random order.")
    clip_xmax: bool = added(False, "Leave out the greatest eigenvalues that raise alpha by more than 1.")
    fit_tests: bool = added(False, "Test each fit: the p of its goodness (Clauset, Shalizi, Newman 2009).")
    delta: bool = added(False, "Analyse the change against the base: of an adapter, or against source_model.")
    delta_vectors: bool = added(False, "As --delta, and compare the singular vectors before and after it.")
    columns: str = added(
        "own", "Write the names and meanings of WeightWatcher or NetESD.", choices=("own", "ww", "netesd")
    )
    device: str = option("auto", "Compute on auto, cpu, cuda or cuda:N.", metavar="DEVICE", check=_check_device)
    cache_dir: str = option(
        "", "Keep spectra of known tensors here.", metavar="DIR", default_text="in the output directory"
    )
    disk_reserve: str = option(
        "", "Download nothing that leaves less than this free.", metavar="SIZE", check=parse_size, default_text="none"
    )
    parallel_gpu: bool = option(True, "Analyse one layer after the other.")
    dtype_report: bool = option(False, "Print in the log of each job how its weights are stored.")
    plots: bool | str = option(
        False,
        "Draw alpha by layer, the spectra with their tails, and LAYER (a regular expression) in figures of its own.",
        metavar="LAYER",
        check=_check_pattern,
        is_optional=True,
    )
    drop_downloads: bool = option(False, "At the end of a job, delete the models that it has downloaded.")
    verify: bool = option(False, "Compare the whole content of local files with that of the analysis.")
    overwrite: bool = option(False, "Analyse models again that are done already.")

    @property
    def wants_change(self) -> bool:
        """True if the change of a model is analysed, not its weights."""
        return self.delta or self.delta_vectors

    def check(self) -> None:
        """Raise GpuschedError for an invalid value."""
        check_values(self)
        if self.wants_change and (self.farms or self.randomize):
            raise GpuschedError("goes with neither --farms nor --randomize, which look at weights", where="--delta")

    def as_record(self, *, source_model: str = "", relation: str = "") -> dict[str, Any]:
        """Return the options that change numbers, whether an adapter is meant, and its base, for a model's record.

        If a whole model and an adapter lie in one directory, the relation alone decides which of the two is analysed.
        """
        options = {
            each.name: value
            for each in options_of(type(self))
            for value in [getattr(self, each.name)]
            if each.changes_numbers or (each.changes_table and value != each.default)
        }
        is_adapter = relation.strip().lower() in ADAPTER_RELATIONS
        return {
            **options,
            "adapter": is_adapter,
            "source_model": source_model if is_adapter or self.wants_change else "",
        }
