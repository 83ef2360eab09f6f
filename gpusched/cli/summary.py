"""The old name of the summary, which a dispatcher of version 0.1 imports at its end: `gpusched status` in its place.

That dispatcher runs the modules of its own version, and this package has replaced their files. The page is made by a
process of its own, since modules of two versions in one process do not fit together.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any


def print_summary(queue: Any, code: int, *, as_json: bool) -> None:
    """Print the state of the queue that the old dispatcher has worked on; its exit code stays what it is."""
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    words = ["status", "-q", queue.place.path, *(["--json"] if as_json else [])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])}
    subprocess.run([sys.executable, "-m", "gpusched", *words], cwd="/", env=environment, check=False)
