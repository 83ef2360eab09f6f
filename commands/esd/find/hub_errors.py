"""Turn the exceptions of huggingface_hub into reasons why a model cannot be fetched.

The words are our own: a library's message may hold an address with a token in it.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator

from ..read.tensors import ModelError

_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS)
_TOO_MANY_REQUESTS, _SERVER_FAULTS = 429, range(500, 600)


def as_model_error(error: BaseException, model: str) -> ModelError:
    """Return the reason why `model` could not be looked at or fetched; transient if another try may succeed."""
    from huggingface_hub import errors

    causes = list(_causes(error))
    for kind, words in (
        (errors.GatedRepoError, "is gated: ask for access on its page, then log in (hf auth login) or set HF_TOKEN"),
        (errors.DisabledRepoError, "was disabled by the hub"),
        (errors.RevisionNotFoundError, "has no such revision"),
        (errors.RepositoryNotFoundError, "is not on the hub, or is private: check its name, and log in"),
        (errors.OfflineModeIsEnabled, "is not in the cache, and HF_HUB_OFFLINE forbids to fetch it"),
    ):
        if any(isinstance(each, kind) for each in causes):
            return ModelError("download", f"{model} {words}")
    for each in causes:
        if isinstance(each, OSError) and each.errno in _DISK:
            return ModelError("download", f"{model}: the cache of the hub cannot be written: {each.strerror}")
    responses = [getattr(each, "response", None) for each in causes]
    status = next((response.status_code for response in responses if response is not None), 0)
    if status and status != _TOO_MANY_REQUESTS and status not in _SERVER_FAULTS:
        return ModelError("download", f"{model}: the hub refuses ({status}); log in if it is private")
    # The errors of the transport: those of requests and of sockets are OSError, hf_xet raises RuntimeError.
    if not any(isinstance(each, (OSError, RuntimeError, errors.HTTPError)) for each in causes):
        return ModelError("download", f"{model}: the hub's library failed with {type(error).__name__}")
    detail = f" ({status})" if status else ""
    reason = f"{model}: the hub cannot be reached, or the transfer broke off{detail}"
    return ModelError("download", reason, transient=True)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
