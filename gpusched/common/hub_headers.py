"""Ask the hub and its cache for the shapes of models, in a child process that is ended at a deadline.

The parent loads no library for it and starts no thread. The child downloads no weights, and passes on no text of an
error, since that may hold an address with a token.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed

from gpusched.common.tensor_headers import Shapes, TensorShape, read_directory

DEADLINE_S = 30.0
AT_ONCE = 8

_YES = frozenset({"1", "on", "yes", "true"})

Model = tuple[str, str]  # name and revision; an empty revision is the hub's own default


def why_not(environ: Mapping[str, str] | None = None) -> str:
    """Return why the hub will not be asked; an empty string if it will."""
    environ = os.environ if environ is None else environ
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        if environ.get(name, "").lower() in _YES:
            return f"it is not here, and {name} is set"
    if importlib.util.find_spec("huggingface_hub") is None:
        return "it is not here, and huggingface_hub is not installed"
    return ""


def ask(models: Collection[Model], deadline_s: float = DEADLINE_S) -> dict[Model, Shapes]:
    """Return the shapes of these models as far as the cache or the hub names them within the deadline."""
    reason = why_not()
    if importlib.util.find_spec("huggingface_hub") is None:
        return {model: Shapes(why_not=reason) for model in models}
    found = {model: Shapes(why_not=reason or f"the hub did not answer in {deadline_s:g} s") for model in models}
    child = subprocess.Popen(
        [sys.executable, "-m", __name__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_DISABLE_TELEMETRY": "1"},
    )
    with child:
        try:
            output, _ = child.communicate(json.dumps(sorted(models)).encode(), timeout=deadline_s)
        except subprocess.TimeoutExpired:
            child.kill()
            output, _ = child.communicate()
        except BaseException:
            child.kill()
            raise
    for line in output.split(b"\n"):
        try:
            name, revision, tensors, problem, base = json.loads(line)
            shapes = tuple(TensorShape(key, tuple(map(int, shape)), str(dtype)) for key, shape, dtype in tensors)
        except (ValueError, TypeError):  # a line that was cut
            continue
        if (name, revision) in found:
            found[name, revision] = Shapes(shapes, why_not=problem or ("" if shapes else reason), base=base)
    return found


# ---- in the child ----------------------------------------------------------------------------------


def main() -> None:
    """Read names and revisions from stdin; write a line for each answer."""
    models = json.loads(sys.stdin.buffer.read())
    with ThreadPoolExecutor(AT_ONCE) as pool:
        answers = {pool.submit(answer, *model): model for model in models}
        for done in as_completed(answers):
            shapes = done.result()
            print(json.dumps([*answers[done], shapes.tensors, shapes.why_not, shapes.base]), flush=True)


def answer(model: str, revision: str) -> Shapes:
    """Return the shapes of one model from the cache, or else from the hub."""
    from huggingface_hub import constants, errors, get_safetensors_metadata, snapshot_download

    cached = Shapes()
    try:
        path = snapshot_download(model, revision=revision or None, local_files_only=True, allow_patterns=[])
        cached = read_directory(path)
    except (OSError, ValueError):  # it is not in the cache
        pass
    if cached.tensors or cached.base or constants.HF_HUB_OFFLINE:
        return cached
    reasons = (
        (errors.GatedRepoError, "it is gated"),
        (errors.RevisionNotFoundError, "the hub has no such revision"),
        (errors.RepositoryNotFoundError, "the hub has no such model, or not for you"),
        (errors.NotASafetensorsRepoError, "its weights are not in safetensors files"),
    )
    try:
        metadata = get_safetensors_metadata(model, revision=revision or None)
    except Exception as error:  # of any library below
        other = f"the hub could not be asked ({type(error).__name__})"
        return Shapes(why_not=next((words for kind, words in reasons if isinstance(error, kind)), other))
    files = metadata.files_metadata.values()
    return Shapes(
        tuple(
            TensorShape(name, tuple(tensor.shape), tensor.dtype)
            for file in files
            for name, tensor in file.tensors.items()
        )
    )


if __name__ == "__main__":
    main()
