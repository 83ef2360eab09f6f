"""One run of the stage: open the model, analyse it, leave its results, say what became of it. Decides no number."""

from __future__ import annotations

import argparse
import os
import resource
import sys
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from gpusched.common.text import one_line
from gpusched.esd.model_record import TABLES, file_stem, is_done

from .analysis import NoCuda, NoDevice, analyse, choose_device, dtypes
from .find.open_model import open_model
from .options import Options
from .read.tensors import ModelError, TensorSource
from .solve.cache import SpectraCache
from .solve.fallback import Poisoned, shortage
from .write import results
from .write.progress import Progress
from .write.results import Table

DONE, FAILED, USAGE, AGAIN, STOPPED = 0, 1, 2, 75, 130
CACHE = ".spectra-cache"
_KIB = 1024


class Stage:
    """One model and what is to be done with it."""

    def __init__(self, args: argparse.Namespace, options: Options, name: str) -> None:
        self.args = args
        self.options = options
        self.name = name
        self.output = Path(args.output_dir)
        self.asked = options.as_record(source_model=args.source_model, relation=args.relation)
        self.began = time.monotonic()
        self.about: dict[str, Any] = {
            "revision": args.revision,
            "options": self.asked,
            "model": args.model,
            "source_model": args.source_model,
            "relation": args.relation,
            "adapters": [],
        }

    def run(self) -> int:
        """The exit code; see __main__."""
        try:
            known = results.read_record(self.output, self.name)
            if is_done(known, revision=self.args.revision, options=self.asked) and not self.args.overwrite:
                self._say(f"done already: {self._table()}; --overwrite analyses it again")
                self._draw()
                return DONE
            return self._analyse()
        except ModelError as error:
            return self._failed(error)
        except NoCuda as error:
            self._say(str(error), sys.stderr)
            return USAGE
        except KeyboardInterrupt:
            self._say("stopped; nothing is recorded", sys.stderr)
            return STOPPED
        except (Poisoned, NoDevice) as error:
            self._say(f"{one_line(error)}; nothing is recorded, try again in a new process", sys.stderr)
            return AGAIN
        except (RuntimeError, MemoryError) as error:
            if not (short := _shortage(error)):
                raise
            self._say(f"{short}; nothing is recorded, try again elsewhere", sys.stderr)
            return AGAIN
        except OSError as error:
            where = one_line(error.filename or self.output)
            self._say(f"cannot write to {where}: {error.strerror}; nothing is recorded", sys.stderr)
            return FAILED

    def _analyse(self) -> int:
        args = self.args
        source = open_model(
            args.model,
            source_model=args.source_model,
            relation=args.relation,
            revision=args.revision,
            reserve_bytes=args.disk_reserve,
            drop_downloads=args.drop_downloads,
        )
        try:
            self._name_parts(source)
            device = choose_device(self.options.device)
            self.about["dtypes"] = {
                dtype: {"tensors": found.tensors, "elements": found.elements} for dtype, found in dtypes(source).items()
            }
            cache = SpectraCache(Path(self.args.cache_dir or self.output / CACHE))
            try:
                table = analyse(source, self.options, device, cache=cache, on_progress=Progress(os.environ))
            finally:
                cache.close()
        finally:
            source.close()
        if not table.rows:
            first = table.skipped[0] if table.skipped else None
            why = f"; {one_line(first.tensor.name)}: {first.reason}" if first else ""
            raise ModelError("analyse", f"none of its {len(table.skipped)} tensors can be analysed{why}")
        self._measure(device, table)
        record = results.save(self.output, self.name, table, self.about)
        self._report(table, record)
        self._draw()
        return DONE

    def _draw(self) -> None:
        """The pictures, if they are wanted. Where they cannot be drawn, that is said, and the analysis stands."""
        if not self.args.plots:
            return
        try:
            from .write.plots import write

            write(str(self.output), file_stem(self.name))
        except (OSError, ValueError, ImportError) as error:
            self._say(f"no pictures: {one_line(error)}", sys.stderr)

    def _failed(self, error: ModelError) -> int:
        if getattr(error, "transient", False):
            self._say(f"{one_line(error)}; nothing is recorded, try again later", sys.stderr)
            return AGAIN
        self._measure(None, None)
        results.save_failure(self.output, self.name, error.stage, error.reason, self.about)
        self._say(f"failed to {error.stage}: {one_line(error.reason)}", sys.stderr)
        return FAILED

    def _name_parts(self, source: TensorSource) -> None:
        """What a resolved model was put together of, its base first."""
        parts = list(getattr(source, "parts", ()))
        if parts:
            self.about["model"] = str(parts[0].name)
            self.about["adapters"] = [str(part.name) for part in parts[1:]]
            self.about["commits"] = {str(part.name): part.commit for part in parts if part.commit}

    def _measure(self, device: torch.device | None, table: Table | None) -> None:
        self.about["seconds"] = round(time.monotonic() - self.began, 3)
        self.about["peak_memory_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _KIB
        cuda = device is not None and device.type == "cuda"
        self.about["peak_gpu_bytes"] = torch.cuda.max_memory_allocated(device) if cuda else 0
        self.about["device"] = "" if device is None else _device_words(device)
        solvers = sorted({row.solver for row in table.rows}) if table is not None else []
        self.about["solver"] = "+".join(solvers) or self.options.solver

    def _report(self, table: Table, record: Mapping[str, Any]) -> None:
        mean, fitted = record["alpha_mean"], record["fitted"]
        alpha = f"mean alpha {mean:.3f} of {fitted} fits" if mean is not None else "no fit"
        self._say(
            f"{len(table.rows)} layers, {len(table.skipped)} tensors skipped, {alpha}, {record['seconds']:.1f} s, "
            f"{record['peak_memory_bytes'] >> 20} MiB, on {record['device']}: {self._table()}"
        )
        for reason, count in Counter(skip.reason for skip in table.skipped).most_common():
            self._say(f"  skipped {count}: {one_line(reason)}")
        for note, count in Counter(row.note for row in table.rows if row.note).most_common():
            self._say(f"  {count} layers: {one_line(note)}")
        for text in table.notes:
            self._say(f"  {one_line(text)}")
        if self.args.dtype_report:
            self._report_types(table, record)

    def _report_types(self, table: Table, record: Mapping[str, Any]) -> None:
        self._say(f"  {'stored in':<16} {'tensors':>7} {'numbers':>14}")
        for dtype, found in record["dtypes"].items():
            self._say(f"  {dtype:<16} {found['tensors']:>7} {found['elements']:>14}")
        for (dtype, solver), count in Counter((row.dtype, row.solver) for row in table.rows).most_common():
            precision = "float32" if solver == "fast" else "float64"
            self._say(f"  {count} layers stored in {dtype}: converted without loss, solved by {solver} in {precision}")

    def _table(self) -> Path:
        return self.output / TABLES / f"{file_stem(self.name)}.csv"

    def _say(self, text: str, to: Any = None) -> None:
        stream = to or sys.stdout
        line = text if text.startswith(" ") else f"{one_line(self.name, 120)}: {text}"
        print(
            line.encode(stream.encoding or "utf-8", "replace").decode(stream.encoding or "utf-8"),
            file=stream,
            flush=True,
        )


def _shortage(error: BaseException) -> str:
    """The error's own first line, if it says that memory is short; a dead CUDA context counts."""
    try:
        return one_line(str(error).partition("\n")[0] or type(error).__name__) if shortage(error) else ""
    except Poisoned as poisoned:
        return str(poisoned)


def _device_words(device: torch.device) -> str:
    return f"{device} ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else "cpu"
