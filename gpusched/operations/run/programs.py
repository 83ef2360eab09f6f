"""The programs that commands begin with, and those of them that PATH does not have. Runs nothing."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

from gpusched.common.processes import has_program
from gpusched.config.settings import Settings
from gpusched.core.jobs.job import JobSpec
from gpusched.lists.finding_table import fault
from gpusched.lists.findings import Finding

# The first word of a command, behind assignments; a path, a variable or a quoted word is none.
_PROGRAM = re.compile(rb"(?:[A-Za-z_]\w*=[^\s'\"$`]*\s+)*([A-Za-z0-9_][\w.+-]*)(?=\s|$)(?!\s*\(\))")
_OF_THE_SHELL = frozenset(
    b"alias bg bind break builtin caller case cd command compgen complete continue coproc declare dirs disown "
    b"echo enable eval exec exit export false fc fg for function getopts hash help history if jobs kill let "
    b"local logout mapfile module ml popd printf pushd pwd read readarray readonly return select set shift "
    b"shopt source suspend test time times trap true type typeset ulimit umask unalias unset until wait while".split()
)


def missing_programs(specs: Iterable[JobSpec], settings: Settings) -> list[Finding]:
    """Return a warning about each program that PATH does not have, at its first line; none with a set-up file."""
    if settings.setup:
        return []
    first: dict[str, int] = {}
    for spec in specs:
        program = _PROGRAM.match(spec.command)
        if program is not None and program[1] not in _OF_THE_SHELL:
            first.setdefault(os.fsdecode(program[1]), spec.line)
    missing = [program for program in first if not has_program(program)]
    return [fault("no-program", program=program).placed(first[program]) for program in missing]
