"""One run of the stage: open the model, analyse it, write its results, report how it ended."""

from __future__ import annotations

import argparse
import resource
import sys
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO

import torch

from gpusched.common.progress_file import ProgressFile
from gpusched.common.quantities import parse_size
from gpusched.common.text import one_line
from gpusched.esd.model_record import TABLES, file_stem, is_done
from gpusched.esd.options import AnalysisOptions

from .analysis import NoCuda, NoDevice, analyse, choose_device, count_dtypes
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
        self.output = Path(args.output_dir)
        self.table_path = self.output / TABLES / f"{file_stem(self.name)}.csv"
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
            record = results.read_record(self.output, self.name)
            is_over = is_done(record, revision=self.args.revision, options=self.about["options"])
            if is_over and not self.options.overwrite:
                self._say(f"done already: {self.table_path}; --overwrite analyses it again")
                self._draw()
                return DONE
            return self._analyse()
        except ModelError as error:
            return self._end_with(error)
        except NoCuda as error:
            self._warn(str(error))
            return USAGE
        except KeyboardInterrupt:
            self._warn("stopped; nothing is recorded")
            return STOPPED
        except (Poisoned, NoDevice) as error:
            self._warn(f"{error}; nothing is recorded, try again in a new process")
            return AGAIN
        except (RuntimeError, MemoryError) as error:
            if not _is_shortage(error):
                raise
            first_line = str(error).partition("\n")[0] or type(error).__name__
            self._warn(f"{first_line}; nothing is recorded, try again elsewhere")
            return AGAIN
        except OSError as error:
            self._warn(f"cannot write to {error.filename or self.output}: {error.strerror}; nothing is recorded")
            return FAILED

    def _analyse(self) -> int:
        args, options = self.args, self.options
        reserve_bytes = parse_size(options.disk_reserve) if options.disk_reserve else 0
        row = {"source_model": args.source_model, "relation": args.relation, "revision": args.revision}
        with (
            closing(Hub(reserve_bytes=reserve_bytes, drop=options.drop_downloads)) as hub,
            open_model(args.model, hub, **row) as model,
        ):
            base, *adapters = model.parts
            self.about["model"] = base.name
            self.about["adapters"] = [part.name for part in adapters]
            self.about["commits"] = {part.name: part.commit for part in model.parts if part.commit}
            device = choose_device(options.device)
            self.about["dtypes"] = count_dtypes(model.source)
            with closing(SpectraCache(Path(options.cache_dir or self.output / CACHE))) as cache:
                table = analyse(model.source, options, device, cache=cache, on_progress=ProgressFile("layers"))
            table = replace(table, notes=[*model.notes, *table.notes])
        if not table.rows:
            first = f"; {table.skipped[0].tensor.name}: {table.skipped[0].reason}" if table.skipped else ""
            raise ModelError("analyse", f"none of its {len(table.skipped)} tensors can be analysed{first}")
        self._measure(device, table)
        record = results.save(self.output, self.name, table, self.about)
        self._report(table, record)
        self._draw()
        return DONE

    def _draw(self) -> None:
        """Draw the plots if they are wanted. If that fails, it is reported, and the analysis stands."""
        if not self.options.plots:
            return
        try:
            from .write.plots import write

            write(str(self.output), file_stem(self.name))
        except (OSError, ValueError, ImportError) as error:
            self._warn(f"no pictures: {error}")

    def _end_with(self, error: ModelError) -> int:
        if error.transient:
            self._warn(f"{error}; nothing is recorded, try again later")
            return AGAIN
        self._measure(None, None)
        results.save_failure(self.output, self.name, error.stage, error.reason, self.about)
        self._warn(f"failed to {error.stage}: {error.reason}")
        return FAILED

    def _measure(self, device: torch.device | None, table: Table | None) -> None:
        """Add time, memory, device and solvers to the record."""
        is_cuda = device is not None and device.type == "cuda"
        solvers = sorted({row.solver for row in table.rows}) if table is not None else []
        self.about |= {
            "seconds": round(time.monotonic() - self.began, 3),
            "peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _KIB,
            "peak_gpu_bytes": torch.cuda.max_memory_allocated(device) if is_cuda else 0,
            "device": f"{device} ({torch.cuda.get_device_name(device)})" if is_cuda else str(device or ""),
            "solver": "+".join(solvers) or self.options.solver,
        }

    def _report(self, table: Table, record: Mapping[str, Any]) -> None:
        mean, fitted = record["alpha_mean"], record["fitted"]
        alpha = f"mean alpha {mean:.3f} of {fitted} fits" if mean is not None else "no fit"
        self._say(
            f"{len(table.rows)} layers, {len(table.skipped)} tensors skipped, {alpha}, {record['seconds']:.1f} s, "
            f"{record['peak_memory_bytes'] >> 20} MiB, on {record['device']}: {self.table_path}"
        )
        skipped = Counter(skip.reason for skip in table.skipped)
        lines = [f"skipped {count}: {reason}" for reason, count in skipped.most_common()]
        notes = Counter(row.note for row in table.rows if row.note)
        lines += [f"{count} layers: {note}" for note, count in notes.most_common()]
        lines += table.notes
        if self.options.dtype_report:
            lines += [
                f"stored in {dtype}: {count['tensors']} tensors, {count['elements']} numbers"
                for dtype, count in record["dtypes"].items()
            ]
            for (dtype, solver), count in Counter((row.dtype, row.solver) for row in table.rows).most_common():
                precision = "float32" if solver == "fast" else "float64"
                lines.append(
                    f"{count} layers stored in {dtype}: converted without loss, solved by {solver} in {precision}"
                )
        for line in lines:
            self._print(f"  {one_line(line)}", sys.stdout)

    def _say(self, text: str) -> None:
        self._print(f"{one_line(self.name, 120)}: {one_line(text, 1000)}", sys.stdout)

    def _warn(self, text: str) -> None:
        self._print(f"{one_line(self.name, 120)}: {one_line(text, 1000)}", sys.stderr)

    @staticmethod
    def _print(line: str, stream: TextIO) -> None:
        encoding = stream.encoding or "utf-8"
        print(line.encode(encoding, "replace").decode(encoding), file=stream, flush=True)


def _is_shortage(error: BaseException) -> bool:
    """Return True if memory is missing, or the CUDA context is lost."""
    try:
        return bool(shortage(error))
    except Poisoned:
        return True
