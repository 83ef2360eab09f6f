"""The words for the reasons why jobs wait and why GPUs are idle."""

from __future__ import annotations

from gpusched.common.text import clean
from gpusched.core.samples import NOTHING_WAITS
from gpusched.views.story.values import UNRECORDED

WAITS = {  # kind of a reason -> what was waited for
    "devices": "a GPU",
    "memory": "memory on a GPU",
    "never": "what this box cannot give",
    "max_gpus": "the limit of the queue (--max-gpus)",
    "tag": "the limit of a tag (--tag-max-gpus)",
    "cpu_jobs": "a place for a CPU job (--cpu-jobs)",
    "host": "cores or memory of the host",
    "look": "the last check before the start",
    "begin": "their time (--begin)",
    "back_off": "the pause before another try",
    "closed": "a queue that was paused or left",
    "nvml": "GPUs that could be read",
    "dependency": "the jobs that they depend on",
    "held": "a person (held)",
    "behind": "jobs ahead",
    UNRECORDED: "a dispatcher (none was there, so nothing was recorded)",
}
_IDLE = {
    NOTHING_WAITS: "free, and no job waited for a GPU",
    "checking": "free checks were counted",
    "settling": "memory of the last job was not back",
    "running": "a job had just ended",
    "unknown": "not read",
    "set_aside": "set aside",
    "more": "other reasons",
}


def gpu_label(uuid: str, index: int) -> str:
    """Return the name of a device: its index, and the beginning of the UUID of one of the parts of a GPU."""
    return f"GPU {index} {uuid[:12]}" if uuid.startswith("MIG-") else f"GPU {index}"


def wait_text(kind: str) -> str:
    return WAITS.get(kind, clean(kind))


def idle_text(why: str) -> str:
    """Return why a GPU was idle, in words."""
    state, _, detail = why.partition(": ")
    if state == NOTHING_WAITS and detail:
        return f"free, while jobs waited for {wait_text(detail)}"
    word = _IDLE.get(state, clean(state))
    return f"{word}: {clean(detail)}" if detail and detail != word else word
