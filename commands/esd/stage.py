"""One run of the stage: open the model, analyse it, write its results, report how it ended."""

from __future__ import annotations

import argparse
import os
import resource
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO

import torch

from gpusched.common.errors import GpuschedError
from gpusched.common.file_identity import describe_file
from gpusched.common.progress_file import ProgressFile
from gpusched.common.quantities import parse_size
from gpusched.common.text import one_line
from gpusched.esd.model_record import (
    LEAST_COVERAGE,
    TABLES,
    changed_file,
    file_stem,
    is_of,
    is_whole,
    read_record,
)
from gpusched.esd.options import AnalysisOptions

from .analysis import NoDevice, analyse, choose_device, count_dtypes, idle_gpu
from .find.hub import Hub
from .find.open_model import open_model
from .read.tensors import ModelError
from .solve.cache import SpectraCache
from .solve.fallback import Poisoned, shortage
from .write import results
from .write.results import Table

DONE, FAILED, USAGE, AGAIN, STOPPED = 0, 1, 2, 75, 130
CACHE = ".spectra-cache"
_KIB = 1024


class Stage:
    """The analysis of one model, with the arguments of the command line."""

    def __init__(self, args: argparse.Namespace, options: AnalysisOptions) -> None:
        self.args = args
        self.options = options
        self.name: str = args.name
        self.stem = file_stem(self.name)
        self.output = Path(args.output_dir)
        self.began = time.monotonic()
        self.about: dict[str, Any] = {
            "revision": args.revision,
            "options": options.as_record(source_model=args.source_model, relation=args.relation),
            "model": args.model,
            "source_model": args.source_model,
            "relation": args.relation,
            "adapters": [],
        }

    def run(self) -> int:
        """Return the exit code; see __main__."""
        try:
            record = read_record(str(self.output), self.stem)
            is_same = is_of(record, revision=self.args.revision, options=self.about["options"])
            is_done = is_same and is_whole(str(self.output), self.stem, record)
            is_changed = is_done and changed_file(record, contents=self.options.verify)
            if is_done and not is_changed and not self.options.overwrite:
                self._say("done already; --overwrite analyses it again")
            else:
                self._analyse()
            self._draw()
            return DONE
        except ModelError as error:
            return self._end_with(error)
        except GpuschedError as error:
            return self._warn(error, USAGE)
        except KeyboardInterrupt:
            return self._warn("stopped; nothing is recorded", STOPPED)
        except OSError as error:
            return self._warn(f"cannot write to {error.filename or self.output}: {error.strerror}", FAILED)
        except (Poisoned, NoDevice, RuntimeError, MemoryError) as error:
            if not isinstance(error, (Poisoned, NoDevice)) and not _is_shortage(error):
                raise
            first_line = str(error).partition("\n")[0] or type(error).__name__
            return self._warn(f"{first_line}; nothing is recorded, try again in a new process", AGAIN)

    def _analyse(self) -> None:
        args, options = self.args, self.options
        reserve_bytes = parse_size(options.disk_reserve) if options.disk_reserve else 0
        row = {"source_model": args.source_model, "relation": args.relation, "revision": args.revision}
        with (
            closing(Hub(reserve_bytes=reserve_bytes, drop=options.drop_downloads)) as hub,
            open_model(args.model, hub, **row, delta=options.wants_change) as model,
            closing(SpectraCache(Path(options.cache_dir or self.output / CACHE))) as cache,
        ):
            self.about["model"], *self.about["adapters"] = model.commits
            self.about["files"] = [describe_file(path, contents=options.verify) for path in model.files]
            self.about["commits"] = {name: commit for name, commit in model.commits.items() if commit}
            device = choose_device(options.device)
            torch.set_float32_matmul_precision("highest")  # no TF32, whatever the environment says
            self.about["dtypes"] = count_dtypes(model.source)
            labels = {
                "model_id": self.name,
                "is_adapter": bool(self.about["adapters"]),
                "source_model": args.source_model,
            }
            progress = ProgressFile("layers")
            table = analyse(model.source, options, device, cache=cache, on_progress=progress, labels=labels)
            table = replace(table, notes=[*idle_gpu(device, os.environ), *model.notes, *table.notes])
        if not table.rows:
            first = "".join(f"; {skip.tensor.name}: {skip.reason}" for skip in table.skipped[:1])
            raise ModelError("analyse", f"none of its {len(table.skipped)} tensors can be analysed{first}")
        self._measure(device, table)
        record = results.save(self.output, self.name, table, self.about)
        for line in self._report(table, record):
            self._say(line)

    def _draw(self) -> None:
        """Draw the plots if they are wanted. If that fails, it is reported, and the analysis stands."""
        if not self.options.plots:
            return
        try:
            from .write.plots import write

            write(str(self.output), self.stem, self.options.plots)
        except (OSError, ValueError, ImportError) as error:
            self._warn(f"no pictures: {error}", DONE)

    def _end_with(self, error: ModelError) -> int:
        if error.transient:
            return self._warn(f"{error}; nothing is recorded, try again later", AGAIN)
        self._measure(torch.device("cpu"), Table((), (), {}))
        self.about["device"] = ""
        results.save_failure(self.output, self.name, error.stage, error.reason, self.about)
        return self._warn(f"failed to {error.stage}: {error.reason}", FAILED)

    def _measure(self, device: torch.device, table: Table) -> None:
        """Add time, memory, device and solvers to the record."""
        is_cuda = device.type == "cuda"
        self.about |= {
            "seconds": round(time.monotonic() - self.began, 3),
            "peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _KIB,
            "peak_gpu_bytes": torch.cuda.max_memory_allocated(device) if is_cuda else 0,
            "device": f"{device} ({torch.cuda.get_device_name(device)})" if is_cuda else str(device),
            "solver": "+".join(sorted({row.solver for row in table.rows})) or self.options.solver,
        }

    def _report(self, table: Table, record: Mapping[str, Any]) -> Iterator[str]:
        mean, fitted = record["alpha_mean"], record["fitted"]
        alpha = f"mean alpha {mean:.3f} of {fitted} fits" if mean is not None else "no fit"
        if table.coverage < LEAST_COVERAGE:
            yield f"partial: only {table.coverage:.0%} of the elements of its layers are analysed; it is in no mean"
        yield (
            f"{len(table.rows)} layers, {len(table.skipped)} tensors skipped, {alpha}, {record['seconds']:.1f} s, "
            f"{record['peak_memory_bytes'] >> 20} MiB, on {record['device']}: {self.output / TABLES / self.stem}.csv"
        )
        for reason, count in Counter(skip.reason for skip in table.skipped).most_common():
            yield f"skipped {count}: {reason}"
        for note, count in Counter(row.note for row in table.rows if row.note).most_common():
            yield f"{count} layers: {note}"
        yield from table.notes
        if self.options.dtype_report:
            for dtype, sums in record["dtypes"].items():
                yield f"stored in {dtype}: {sums['tensors']} tensors, {sums['elements']} numbers"
            for (dtype, solver), count in Counter((row.dtype, row.solver) for row in table.rows).most_common():
                precision = "float32" if solver == "fast" else "float64"
                yield f"{count} layers stored in {dtype}: converted without loss, solved by {solver} in {precision}"

    def _say(self, text: object, stream: TextIO | None = None) -> None:
        print(f"{one_line(self.name, 120)}: {one_line(text, 1000)}", file=stream, flush=True)

    def _warn(self, text: object, code: int) -> int:
        """Print a message on stderr; return the exit code."""
        self._say(text, sys.stderr)
        return code


def _is_shortage(error: BaseException) -> bool:
    """Return True if memory is missing, or the CUDA context is lost."""
    with suppress(Poisoned):
        return bool(shortage(error))
    return True
