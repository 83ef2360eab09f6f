"""The command line of the stage: analyse one model, and leave its table, spectra and record. Schedules nothing.

Exit codes: 0 done, now or before; 1 the model cannot be analysed, its record says why; 2 usage; 75 not now or not here
(a dead CUDA context, no such device, no memory, a network that is down): nothing is recorded, another try may succeed;
130 stopped by Ctrl-C.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from gpusched.common.errors import GpuschedError
from gpusched.common.option_table import add_arguments, options_of, with_dashes
from gpusched.esd.model_record import file_stem
from gpusched.esd.options import AnalysisOptions


def main(argv: Sequence[str] | None = None) -> int:
    """Run the stage with these arguments; return its exit code."""
    parser = stage_parser(AnalysisOptions)
    args = parser.parse_args([with_dashes(word) for word in (sys.argv[1:] if argv is None else argv)])
    options = AnalysisOptions(**{each.name: getattr(args, each.name) for each in options_of(AnalysisOptions)})
    try:
        options.check()
        args.name = args.name or (Path(args.model).resolve().name if os.path.exists(args.model) else args.model)
        file_stem(args.name)
    except (GpuschedError, ValueError) as error:
        parser.error(str(error))
    from .solve.fallback import return_freed_blocks
    from .stage import Stage

    return_freed_blocks()
    return Stage(args, options).run()


def stage_parser(kind: type) -> argparse.ArgumentParser:
    """Return a parser of the model's own arguments and of the options of the dataclass `kind`."""
    parser = argparse.ArgumentParser(prog="python -m gpusched.commands.esd", description=__doc__)
    add = parser.add_argument
    add("--model", required=True, metavar="NAME|PATH", help="a model on the hub, or a directory or file of weights")
    add("--output-dir", required=True, metavar="DIR", help="the directory of tables, spectra and records")
    add("--source-model", default="", metavar="BASE", help="the base that an adapter is merged into")
    add("--relation", default="", metavar="WORD", help="its relation to the base: adapter, finetune …")
    add("--revision", default="", metavar="REV", help="branch, tag or commit on the hub")
    add("--name", default="", help="its name in the results (default: the model's)")
    add_arguments(parser, kind)
    return parser
