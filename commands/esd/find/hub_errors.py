"""Turn the exceptions of huggingface_hub into reasons why a model cannot be fetched.

The words are our own: a library's message may hold an address with a token in it.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator

from ..read.tensors import ModelError

_DISK = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the quota of the disk is used up",
    errno.EACCES: "the cache of the hub cannot be written",
    errno.EROFS: "the cache of the hub cannot be written",
}
_PRIVATE = " is not on the hub, or is private: check its name, and log in if it is private"


def as_model_error(error: BaseException, model: str) -> ModelError:
    """Return the reason why `model` could not be looked at or fetched; transient if another try may succeed."""
    from huggingface_hub import errors

    causes = list(_causes(error))
    status = next(filter(None, map(_status, causes)), 0)
    for each in causes:
        if isinstance(each, OSError) and each.errno in _DISK:
            return ModelError("download", f"{model}: {_DISK[each.errno]}")
    for kind, words in (
        (errors.GatedRepoError, " is gated: ask for access on its page, then log in (hf auth login) or set HF_TOKEN"),
        (errors.DisabledRepoError, " was disabled by the hub"),
        (errors.RevisionNotFoundError, " has no such revision"),
        (errors.RepositoryNotFoundError, _PRIVATE),
        (errors.OfflineModeIsEnabled, " is not in the cache, and HF_HUB_OFFLINE forbids to fetch it"),
    ):
        if any(isinstance(each, kind) for each in causes):
            return ModelError("download", model + words)
    missing = [each for each in causes if isinstance(each, errors.EntryNotFoundError)]
    if missing and not any(isinstance(each, errors.LocalEntryNotFoundError) for each in missing):
        return ModelError("download", f"{model}: a file that it lists is not there")
    if status:
        return _http_error(status, model)
    # The errors of the transport: those of requests and of sockets are OSError, hf_xet raises RuntimeError.
    network = (OSError, RuntimeError, errors.HTTPError, errors.XetDownloadError)
    if any(isinstance(each, network) for each in causes):
        return ModelError("download", f"{model}: the hub cannot be reached, or the transfer broke off", transient=True)
    return ModelError("download", f"{model}: the hub's library failed with {type(error).__name__}")


def _http_error(status: int, model: str) -> ModelError:
    words = {
        401: _PRIVATE,
        403: " may not be read with this login (403)",
        429: ": the hub asks for fewer requests (429)",
    }
    if status >= 500:
        return ModelError("download", f"{model}: the hub has a fault ({status})", transient=True)
    return ModelError("download", model + words.get(status, f": the hub refuses ({status})"), transient=status == 429)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    for _ in range(10):
        if error is None:
            return
        yield error
        error = error.__cause__ or error.__context__


def _status(error: BaseException) -> int:
    status = getattr(getattr(error, "response", None), "status_code", 0)
    return status if isinstance(status, int) else 0
