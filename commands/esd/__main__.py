"""`python -m gpusched.commands.esd`: analyse one model, and leave its table, spectra and record. Schedules nothing.

Exit codes: 0 done, or done already; 1 the model cannot be analysed, its record says why; 2 usage; 75 not now or not
here (a dead CUDA context, no such device, no memory, a network that is down): nothing is recorded, try again elsewhere;
130 stopped by Ctrl-C.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from gpusched.esd.model_record import DEFAULTS, file_stem


def main(argv: Sequence[str] | None = None) -> int:
    parser = _parser()
    args = parser.parse_args(argv)
    from .options import Options

    given = {key: getattr(args, key) for key in DEFAULTS}
    try:
        options = Options(**given, device=args.device, parallel=args.parallel)
        name = args.name or (Path(args.model).resolve().name if os.path.exists(args.model) else args.model)
        file_stem(name)
        if args.disk_reserve:
            from .find.hub import parse_size

            args.disk_reserve = parse_size(args.disk_reserve)
    except ValueError as error:
        parser.error(str(error))
    from .solve.fallback import return_freed_blocks
    from .stage import Stage

    return_freed_blocks()
    return Stage(args, options, name).run()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m gpusched.commands.esd", description=__doc__)
    add = parser.add_argument
    add("--model", required=True, metavar="NAME|PATH", help="a model on the hub, or a directory or file of weights")
    add("--output-dir", required=True, metavar="DIR", help="where tables, spectra and records go")
    add("--source-model", default="", metavar="BASE", help="what an adapter is merged into")
    add("--relation", default="", metavar="WORD", help="what the model is to it: base, finetune, adapter …")
    add("--revision", default="", metavar="REV", help="branch, tag or commit on the hub")
    add("--name", default="", help="its name in the results (default: the model's)")
    add("--overwrite", action="store_true", help="analyse it even if that is done")
    add("--fix-fingers", default=DEFAULTS["fix_fingers"], choices=("xmin_mid", "xmin_peak", "DKS"), help="tail's start")
    add("--evals-thresh", type=float, default=DEFAULTS["evals_thresh"], help="eigenvalues up to it are left out")
    add("--bins", type=int, default=DEFAULTS["bins"], help="of xmin_peak's histogram")
    add("--peak-window", default=DEFAULTS["peak_window"], choices=("near", "legacy"), help="where xmin_peak looks")
    add("--solver", default=DEFAULTS["solver"], choices=("auto", "gram", "svd", "fast"), help="of the eigenvalues")
    add("--device", default="auto", metavar="auto|cpu|cuda|cuda:N", help="where they are solved")
    add("--no-parallel-gpu", dest="parallel", action="store_false", help="one layer at a time")
    add("--layers", default=DEFAULTS["layers"], metavar="REGEX", help="only tensors whose name it finds")
    add("--embeddings", action="store_true", help="embeddings too")
    add("--min-evals", type=int, default=DEFAULTS["min_evals"], metavar="N", help="fewer eigenvalues get no fit")
    add("--farms", action="store_true", help="spectra of submatrices of one aspect ratio (FARMS, ICML 2025)")
    add("--randomize", action="store_true", help="compare with the same entries in random order")
    add("--dtype-report", action="store_true", help="print what the tensors are stored in and computed in")
    add("--plots", action="store_true", help="draw alpha by layer and the spectra")
    add("--cache-dir", default="", metavar="DIR", help="spectra of known tensors (default: OUT/.spectra-cache)")
    add("--disk-reserve", default=0, metavar="SIZE", help="leave so much of the disk free when downloading, as in 20G")
    add("--drop-downloads", action="store_true", help="at the end, delete what this process downloaded itself")
    return parser


if __name__ == "__main__":
    sys.exit(main())
