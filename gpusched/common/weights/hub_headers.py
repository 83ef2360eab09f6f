"""Read the shapes of models on this box, in the cache of the hub or on the hub, in a child with a deadline.

The parent loads no library for it and starts no thread. The child downloads no weights, and passes on no text of an
error, since that may hold an address with a token.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress

import msgspec

from gpusched.common.weights.tensor_headers import Shapes, TensorShape, read_local

DEADLINE_S = 30.0
AT_ONCE = 8

Model = tuple[str, str]  # name and revision; an empty revision is the hub's own default

_Answer = tuple[Model, Shapes]


def ask(models: Collection[Model], deadline_s: float = DEADLINE_S) -> dict[Model, Shapes]:
    """Return the shapes of these models as far as they are known within the deadline."""
    try:
        output = subprocess.run(
            [sys.executable, "-m", __name__],
            input=msgspec.json.encode(sorted(models)),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_DISABLE_TELEMETRY": "1"},
            timeout=deadline_s,
        ).stdout
    except subprocess.TimeoutExpired as error:
        output = error.output or b""
    answers = dict.fromkeys(models, Shapes(why_not=f"the hub did not answer in {deadline_s:g} s"))
    for line in output.splitlines():
        with suppress(msgspec.DecodeError):  # a line that was cut
            model, shapes = msgspec.json.decode(line, type=_Answer)
            answers[model] = shapes
    return answers


# ---- in the child ----------------------------------------------------------------------------------


def main() -> None:
    """Read names and revisions from stdin; write a line for each answer."""
    models = msgspec.json.decode(sys.stdin.buffer.read(), type=list[Model])
    with ThreadPoolExecutor(AT_ONCE) as pool:
        answers = {pool.submit(answer, *model): model for model in models}
        for done in as_completed(answers):
            print(msgspec.json.encode((answers[done], done.result())).decode(), flush=True)


def answer(model: str, revision: str) -> Shapes:
    """Return the shapes of one model; of an adapter, those of the base that it names."""
    shapes = _find(model, revision)
    return _find(shapes.base, "") if shapes.base else shapes


def _find(model: str, revision: str) -> Shapes:
    if os.path.exists(model):
        return read_local(model)
    try:
        from huggingface_hub import constants, errors, get_safetensors_metadata, snapshot_download
    except ImportError:
        return Shapes(why_not="it is not here, and huggingface_hub is not installed")
    with suppress(OSError, ValueError):  # it is not in the cache
        path = snapshot_download(model, revision=revision or None, local_files_only=True, allow_patterns=[])
        cached = read_local(path)
        if cached.tensors or cached.base:
            return cached
    if constants.HF_HUB_OFFLINE:
        return Shapes(why_not="it is not here, and HF_HUB_OFFLINE is set")
    reasons = (
        (errors.GatedRepoError, "it is gated"),
        (errors.RevisionNotFoundError, "the hub has no such revision"),
        (errors.RepositoryNotFoundError, "the hub has no such model, or not for you"),
        (errors.NotASafetensorsRepoError, "its weights are not in safetensors files"),
        (Exception, "the hub could not be asked"),
    )
    try:
        metadata = get_safetensors_metadata(model, revision=revision or None)
    except Exception as error:  # of any library below
        return Shapes(why_not=next(words for kind, words in reasons if isinstance(error, kind)))
    files = metadata.files_metadata.values()
    tensors = ((name, tensor) for file in files for name, tensor in file.tensors.items())
    return Shapes(tuple(TensorShape(name, tuple(tensor.shape), tensor.dtype) for name, tensor in tensors))


if __name__ == "__main__":
    main()
