"""What the hub's library raises -> why a model cannot be had, and whether trying again can help. Fetches nothing.

The words are ours alone: a library's message may hold an address with a token in it.
"""

from __future__ import annotations

import errno

from ..read.tensors import ModelError


class TransientError(ModelError):
    """A failure that may be over in a while: a network that is down, a hub that is busy. Another try is worth it."""

    transient = True


def as_model_error(error: BaseException, name: str) -> ModelError:
    """Why `name` could not be looked at or fetched."""
    model = name
    kinds = {kind.__name__ for each in _causes(error) for kind in type(each).__mro__}
    status = next((s for s in map(_status, _causes(error)) if s), 0)
    disk = {errno.ENOSPC: "the disk is full", errno.EDQUOT: "the quota of the disk is used up"}
    for each in _causes(error):
        if isinstance(each, OSError) and each.errno in (*disk, errno.EACCES, errno.EROFS):
            return ModelError("download", f"{model}: {disk.get(each.errno, 'the cache of the hub cannot be written')}")
    if "GatedRepoError" in kinds:
        return ModelError(
            "download", f"{model} is gated: ask for access on its page, then log in (hf auth login) or set HF_TOKEN"
        )
    if "DisabledRepoError" in kinds:
        return ModelError("download", f"{model} was disabled by the hub")
    if "RevisionNotFoundError" in kinds:
        return ModelError("download", f"{model} has no such revision")
    if "RepositoryNotFoundError" in kinds or status == 401:
        return ModelError(
            "download", f"{model} is not on the hub, or is private: check its name, and log in if it is private"
        )
    if "OfflineModeIsEnabled" in kinds:
        return ModelError("download", f"{model} is not in the cache, and HF_HUB_OFFLINE forbids to fetch it")
    if "EntryNotFoundError" in kinds and "LocalEntryNotFoundError" not in kinds:
        return ModelError("download", f"{model}: a file that it lists is not there")
    if status == 403:
        return ModelError("download", f"{model} may not be read with this login (403)")
    if status == 429:
        return TransientError("download", f"{model}: the hub asks for fewer requests (429)")
    if status >= 500:
        return TransientError("download", f"{model}: the hub has a fault ({status})")
    if status >= 400:
        return ModelError("download", f"{model}: the hub refuses ({status})")
    if _is_network(error):
        return TransientError("download", f"{model}: the hub cannot be reached, or the transfer broke off")
    return ModelError("download", f"{model}: the hub's library failed with {type(error).__name__}")


def _causes(error: BaseException | None) -> list[BaseException]:
    found: list[BaseException] = []
    while error is not None and error not in found and len(found) < 10:
        found.append(error)
        error = error.__cause__ or error.__context__
    return found


def _status(error: BaseException) -> int:
    status = getattr(getattr(error, "response", None), "status_code", 0)
    return status if isinstance(status, int) else 0


def _is_network(error: BaseException) -> bool:
    """Of the libraries for transfers that the hub's library has used over time, or of the sockets below them."""
    for each in _causes(error):
        if isinstance(each, RuntimeError) or type(each).__name__ == "XetDownloadError":
            return True  # what hf_xet says of a transfer that failed
        top = type(each).__module__.partition(".")[0]
        if top in ("httpx", "httpx2", "httpcore", "requests", "urllib3", "ssl", "hf_xet"):
            return True
        if isinstance(each, ConnectionError | TimeoutError) or type(each).__name__ == "LocalEntryNotFoundError":
            return True
        if isinstance(each, OSError) and "onsistency check" in str(each):
            return True
    return False
