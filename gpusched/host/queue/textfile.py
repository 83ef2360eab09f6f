"""The file of a queue in the directory of node_exporter's textfile collector. Decides nothing about its content."""

from __future__ import annotations

import hashlib
import os

from gpusched.common.files import write_atomically
from gpusched.common.text import log_stem
from gpusched.host.queue.queue_dirs import QueueDir


def write(directory: str, queue: QueueDir, text: str) -> None:
    """Replace the file of this queue, which everybody may read. Raises OSError."""
    name = hashlib.blake2b(os.fsencode(queue.path), digest_size=4).hexdigest()
    path = f"{directory}/gpusched-{log_stem(os.fsencode(queue.name))}-{name}.prom"
    write_atomically(path, text.encode("utf-8", "replace"), temporary=f"{path}.tmp", for_all=True)
