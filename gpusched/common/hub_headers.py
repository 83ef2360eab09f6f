"""Asks the hub for the shapes of models that are not on this machine: a child process that is ended at a deadline.

The dispatcher's own process loads nothing for that and starts no thread. Downloads no weights; shows no text of an
error, since that may hold an address with a token.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import threading
from collections.abc import Collection, Mapping
from typing import Any

from gpusched.common.tensor_headers import Shapes, tensor

DEADLINE_S = 30.0
AT_ONCE = 8

_YES = frozenset({"1", "on", "yes", "true"})
_REASONS = {
    "GatedRepoError": "it is gated",
    "RepositoryNotFoundError": "the hub has no such model, or not for you",
    "RevisionNotFoundError": "the hub has no such revision",
    "NotASafetensorsRepoError": "its weights are not in safetensors files",
}

Model = tuple[str, str]  # name and revision; an empty revision is the hub's own default


def why_not(environ: Mapping[str, str] | None = None) -> str:
    """Why the hub is not to be asked; empty: it may be."""
    environ = os.environ if environ is None else environ
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        if environ.get(name, "").lower() in _YES:
            return f"it is not here, and {name} is set"
    if importlib.util.find_spec("huggingface_hub") is None:
        return "it is not here, and huggingface_hub is not installed"
    return ""


def ask(models: Collection[Model], deadline_s: float = DEADLINE_S) -> dict[Model, Shapes]:
    """What the hub says of these models, each at its revision, within the deadline."""
    found = {model: Shapes(why_not=f"the hub did not answer in {deadline_s:g} s") for model in models}
    if reason := why_not():
        return {model: Shapes(why_not=reason) for model in models}
    child = subprocess.Popen(
        [sys.executable, "-m", __name__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_DISABLE_TELEMETRY": "1"},
    )
    try:
        said, _ = child.communicate(json.dumps(sorted(models)).encode(), timeout=deadline_s)
    except subprocess.TimeoutExpired:
        child.kill()
        said, _ = child.communicate()
    except BaseException:
        child.kill()
        child.wait()
        raise
    for line in said.split(b"\n"):
        try:
            name, revision, tensors, reason = json.loads(line)
            shapes = tuple(tensor(key, {"shape": shape, "dtype": dtype}, name) for key, shape, dtype in tensors)
        except (ValueError, TypeError):  # a line that was cut
            continue
        if (name, revision) in found:
            found[name, revision] = Shapes(shapes, why_not=reason)
    return found


# ---- in the child ----------------------------------------------------------------------------------


def main() -> None:
    """Read names and revisions from stdin, write a line for each answer."""
    models = json.loads(sys.stdin.buffer.read())
    waiting = iter(models)
    lock = threading.Lock()

    def work() -> None:
        while True:
            with lock:
                model = next(waiting, None)
            if model is None:
                return
            line = json.dumps([*model, *answer(*model)])
            with lock:
                sys.stdout.write(line + "\n")
                sys.stdout.flush()

    threads = [threading.Thread(target=work) for _ in range(min(AT_ONCE, len(models)))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def answer(model: str, revision: str) -> tuple[list[Any], str]:
    """The tensors of one model as the hub tells them, and why there are none."""
    from huggingface_hub import HfApi

    try:
        told = HfApi().get_safetensors_metadata(model, revision=revision or None)
    except Exception as error:  # of any library below: the model is taken as unknown
        return [], _REASONS.get(type(error).__name__, f"the hub could not be asked ({type(error).__name__})")
    files = told.files_metadata.values()
    return [[key, list(each.shape), each.dtype] for file in files for key, each in file.tensors.items()], ""


if __name__ == "__main__":
    main()
