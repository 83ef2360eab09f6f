"""Select the devices that a queue may use, by the user's list and CUDA_VISIBLE_DEVICES. Reads no environment."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from gpusched.common.errors import EXIT_CANNOT_WORK, GpuschedError
from gpusched.common.text import count
from gpusched.core.model import Device

# An entry in a list of GPUs: an index, a range, or a UUID or its beginning.
GPU_ENTRY = re.compile(r"[0-9]{1,5}(?:(?:-|\.\.)[0-9]{1,5})?|(?:GPU|MIG)-[A-Za-z0-9_/-]+", re.IGNORECASE)
_RANGE = re.compile(r"^(\d+)\.\.(\d+)$")
_INDEX = re.compile(r"\d{1,4}")
_UUID = re.compile(r"(?:GPU|MIG)-[0-9A-Za-z/-]+", re.IGNORECASE)
_OPTION = "--gpu-list"
_MASK = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True, slots=True)
class Selection:
    """The devices that may be used, the preferred first, and warnings about the selection."""

    uuids: tuple[str, ...]
    warnings: tuple[str, ...] = ()


def parse_gpu_list(text: str) -> tuple[str, ...]:
    """Return the entries of a list such as `0,1,4-7 GPU-8f3a`: indices, ranges, and UUIDs or their beginnings.

    A range may be written 4..7, too.

    Raises ValueError, which says what would be right.
    """
    entries = tuple(_RANGE.sub(r"\1-\2", entry) for entry in re.split(r"[,\s]+", text) if entry)
    if not entries:
        raise ValueError(_FORMS)
    for entry in entries:
        if not GPU_ENTRY.fullmatch(entry):
            raise ValueError(f"{_FORMS}; {entry!r} is none of them")
        first, dash, last = entry.partition("-")
        if dash and first.isdigit() and int(first) > int(last):
            raise ValueError(f"{_FORMS}; the range {entry} runs backwards")
    return entries


_FORMS = "a list such as 0,1,4-7 of indices, ranges and UUIDs (GPU-…, MIG-…)"


def _expanded(wanted: str) -> Iterator[str]:
    """The entries of the user's list with each range as its indices."""
    for entry in parse_gpu_list(wanted):
        first, dash, last = entry.partition("-")
        if first.isdigit():
            yield from map(str, range(int(first), int(last if dash else first) + 1))
        else:
            yield entry


def select(
    devices: Sequence[Device],
    *,
    wanted: str | None = None,
    outer_mask: str | None = None,
    outer_order: str | None = None,
    gpus_per_job: int = 1,
    max_gpus: int | None = None,
) -> Selection:
    """Select the allowed devices, or raise GpuschedError for a request that this box can never meet.

    `wanted` is the user's list, as parse_gpu_list() takes it; its indices are those of the box. `outer_mask` and
    `outer_order` are CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER of the environment: the mask limits the selection.
    """
    if max_gpus is not None and gpus_per_job > max_gpus:
        what = f"{count(max_gpus, 'GPU')} at once can never give {gpus_per_job} to one job"
        raise GpuschedError(what, where="--max-gpus", hint=f"--max-gpus {gpus_per_job} or more")
    warnings: list[str] = []
    if not gpus_per_job:
        return Selection(())  # CPU jobs need neither a GPU nor a valid mask
    if outer_order not in (None, "", "PCI_BUS_ID"):
        warnings.append(f"CUDA_DEVICE_ORDER={outer_order} is not passed on: jobs get PCI_BUS_ID")
    if not devices:
        raise GpuschedError("there is no GPU on this box", hint=_NO_GPU, exit_code=EXIT_CANNOT_WORK)
    allowed = list(devices)
    if outer_mask is not None:
        allowed = _apply_mask(devices, outer_mask, outer_order, warnings)
    if wanted is not None:
        allowed = _apply_list(devices, allowed, list(_expanded(wanted)), outer_mask)
    usable = _usable(devices, allowed, gpus_per_job, warnings)
    if gpus_per_job > len(usable):
        what = f"{count(len(usable), 'GPU')} can never give {gpus_per_job} to one job"
        if gpus_per_job > 1 and any(device.is_mig for device in allowed):
            what += ", and a job gets no more than one MIG instance"
        raise GpuschedError(what, where="--gpus", hint=f"allowed: {_labels(usable) or 'none'}")
    return Selection(tuple(device.uuid for device in usable), tuple(warnings))


_NO_GPU = "jobs with [gpus=0] run on the CPU, --simulate 4 simulates GPUs"


def visible_value(devices: Sequence[Device], uuids: Sequence[str], form: str, degraded: bool) -> str:
    """Return CUDA_VISIBLE_DEVICES for a job with these devices; empty for none.

    `form` is auto, index or uuid. auto means indices, which many programs expect, unless the box is `degraded`
    (a GPU is lost or missing, so that indices may shift) or has MIG. An instance has no index.
    """
    by_uuid = {device.uuid: device for device in devices}
    mine = [by_uuid.get(uuid) for uuid in uuids]
    if form == "auto":
        has_mig = any(device.is_mig or device.mig_parent for device in devices)
        form = "uuid" if degraded or has_mig else "index"
    if form == "index":
        indices = [str(device.index) for device in mine if device is not None and not device.is_mig]
        if len(indices) == len(uuids):
            return ",".join(indices)
    return ",".join(uuids)


# ---- the steps -------------------------------------------------------------------------------------


def _apply_mask(devices: Sequence[Device], mask: str, order: str | None, warnings: list[str]) -> list[Device]:
    """Return the devices that CUDA would show under this mask: it stops at the first entry that names none."""
    entries = [entry.strip() for entry in mask.split(",")]
    by_index = bool(_INDEX.fullmatch(entries[0]))
    visible: list[Device] = []
    bad: str | None = None
    for entry in entries:
        matches = _by_token(devices, entry)
        if len(matches) != 1 or bool(_INDEX.fullmatch(entry)) != by_index:
            bad = entry
            break
        inside = _instances(devices, matches)
        if visible and inside[0] in visible:
            raise GpuschedError(f"named more than once: {entry}", where=f"{_MASK}={mask}", hint="name each GPU once")
        visible += inside
    if not visible:
        what = f"{_MASK}={mask} allows no GPU" if mask.strip() else f"{_MASK} is set and empty: no GPU is allowed"
        hint = f"unset {_MASK}, or set it to some of: {_labels(devices)}"
        raise GpuschedError(what, where="environment", hint=hint, exit_code=EXIT_CANNOT_WORK)
    if bad is not None and bad != "-1":
        warnings.append(f"{_MASK}={mask}: {bad or 'an empty item'} names no GPU, so the rest is ignored")
    if by_index and order != "PCI_BUS_ID" and len({d.name for d in devices if not d.is_mig}) > 1:
        warnings.append(f"{_MASK}={mask} is read in PCI order; CUDA's own order may differ where models do")
    return visible


def _apply_list(
    devices: Sequence[Device], allowed: Sequence[Device], tokens: Sequence[str], mask: str | None
) -> list[Device]:
    """Return the devices that the user's list names, in its order."""
    selected: list[tuple[Device, str]] = []
    for token in tokens:
        matches = _by_token(devices, token)
        if not matches:
            raise GpuschedError(f"there is no GPU {token} here", where=_OPTION, hint=f"here are: {_labels(devices)}")
        if len(matches) > 1:
            what = f"{token} begins more than one UUID"
            raise GpuschedError(what, where=_OPTION, hint="one of: " + ", ".join(d.uuid for d in matches))
        inside = [device for device in _instances(devices, matches) if device in allowed]
        if not inside:
            what = f"GPU {token} is outside of {_MASK}={mask}"
            raise GpuschedError(what, where=_OPTION, hint=f"allowed: {_labels(allowed)}")
        selected += ((device, token) for device in inside)
    chosen = [device for device, _ in selected]
    repeated = dict.fromkeys(token for n, (device, token) in enumerate(selected) if device in chosen[:n])
    if repeated:
        raise GpuschedError(f"named more than once: {', '.join(repeated)}", where=_OPTION, hint="name each GPU once")
    return chosen


def _usable(
    devices: Sequence[Device], allowed: Sequence[Device], gpus_per_job: int, warnings: list[str]
) -> list[Device]:
    """Leave out MIG parents, devices that accept no work, and MIG instances if a job needs several devices."""
    usable: list[Device] = []
    modes = {device.uuid: device.compute_mode for device in devices}
    refused: list[Device] = []
    for device in allowed:
        if device.mig_parent:
            if not any(d.parent_uuid == device.uuid for d in devices):
                warnings.append(f"GPU {device.index} is in MIG mode and has no instance: it is not used")
        elif "prohibited" in (device.compute_mode, modes.get(device.parent_uuid or "")):
            refused.append(device)
        else:
            usable.append(device)
    if refused:
        warnings.append(f"in compute mode PROHIBITED and never used: {_labels(refused)}")
    if gpus_per_job > 1:
        usable = [device for device in usable if not device.is_mig]
    elif not usable:
        what = "no GPU that is allowed can be used: " + "; ".join(warnings)
        hint = f"here are: {_labels(devices)}"
        raise GpuschedError(what, hint=hint, exit_code=EXIT_CANNOT_WORK)
    return usable


# ---- names -----------------------------------------------------------------------------------------


def _by_token(devices: Sequence[Device], token: str) -> list[Device]:
    """Return the device with this index or UUID, or all devices whose UUIDs begin with this text."""
    if _INDEX.fullmatch(token):
        return [device for device in devices if device.index == int(token) and not device.is_mig][:1]
    if not _UUID.fullmatch(token):
        return []
    beginning = [device for device in devices if device.uuid.lower().startswith(token.lower())]
    exact = [device for device in beginning if len(device.uuid) == len(token)]
    return exact or beginning


def _instances(devices: Sequence[Device], matches: Iterable[Device]) -> list[Device]:
    """Replace each GPU in MIG mode by its instances."""
    result: list[Device] = []
    for device in matches:
        inside = [d for d in devices if d.parent_uuid == device.uuid] if device.mig_parent else []
        result += inside or [device]
    return result


def _labels(devices: Iterable[Device]) -> str:
    return ", ".join(device.uuid if device.is_mig else f"{device.index} ({device.name})" for device in devices)
