"""The child process that loads NVML and reads samples. Holds no lock, keeps no count, judges nothing.

It talks over descriptor 0, a socket, in lines of JSON. A question is a list of UUIDs, or null for everything.
An answer has `devices` and `samples` with the fields of Device and Sample (core.model), and `nameless` for
GPUs whose UUID cannot be read; or `trouble`, the class and text of an exception, where NVML as a whole does not
work. Then the child ends: only a new process loads a library anew.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pynvml

from gpusched.common import processes
from gpusched.host.gpus.nvml_groups import Groups

UNKNOWN_BYTES = 2**64 - 1
HIDDEN_BYTES = 256 << 20  # more than a driver keeps for itself: if nothing is listed, something is hidden
RESERVE_BYTES = 1 << 30  # at most what memory v1 calls used although the driver has only reserved it
RECENT_US = 2_000_000  # a driver samples what a process does once a second or more often
UNIFIED = re.compile(r"\b(GB10|Thor|Orin|Xavier|Tegra|Jetson)\b", re.IGNORECASE)  # they use the host's memory
COMPUTE_MODES = {1: "exclusive_process", 2: "prohibited", 3: "exclusive_process"}

SUCCESS, NOT_FOUND, INSUFFICIENT_SIZE, FUNCTION_NOT_FOUND = 0, 6, 7, 13
AS_A_WHOLE = (1, 9, 18)  # uninitialised, driver not loaded, library and driver differ: no device's own error
UNSUPPORTED = (3, 4, 13, 25)  # not supported, no permission, no such function or version of its argument
LOST = (6, 15, 28)  # not found, lost, GPU not found
Fields = dict[str, Any]


class _ListedV1(ctypes.Structure):
    _fields_ = (("pid", ctypes.c_uint), ("used", ctypes.c_ulonglong))


class _Listed(ctypes.Structure):
    _fields_ = (*_ListedV1._fields_, ("gi", ctypes.c_uint), ("ci", ctypes.c_uint))


class People:
    """The users and programs of processes, read once for each process.

    A driver may list pids of another namespace, some of which are other processes here. So a process is no other one
    only if it began before its pid was listed and, except in the first namespace, after this reader.
    """

    def __init__(self) -> None:
        self._earliest_ticks = 0 if processes.is_first_pid_namespace() else processes.boot_ticks()
        self._asked: set[int] = set()  # pids
        self._listed_ticks: dict[int, int] = {}  # pid -> when it was listed first
        self._known: dict[int, tuple[str, Fields]] = {}  # pid -> start time, user and program

    def of(self, pid: int) -> Fields | None:
        """Return user and program; None for a pid that may be of another namespace."""
        self._asked.add(pid)
        listed_ticks = self._listed_ticks.setdefault(pid, processes.boot_ticks())
        stat = processes.process_stat(pid)
        if stat is not None and pid in self._known and self._known[pid][0] != stat[19]:
            return None  # another process has got the pid of one whose memory is not back yet
        with suppress(OSError):
            if stat is not None and pid not in self._known and self._earliest_ticks <= int(stat[19]) <= listed_ticks:
                self._known[pid] = (
                    stat[19],
                    {"user": processes.user_name(os.stat(f"/proc/{pid}").st_uid), "program": _program(pid)},
                )
        return self._known[pid][1] if pid in self._known else None

    def forget_unlisted(self) -> None:
        """Forget the processes that nobody has asked for since the last call."""
        self._known = {pid: process for pid, process in self._known.items() if pid in self._asked}
        self._listed_ticks = {pid: ticks for pid, ticks in self._listed_ticks.items() if pid in self._asked}
        self._asked = set()


def _program(pid: int) -> str:
    """Return the program's name; for an interpreter also its script. Never more: arguments may hold secrets."""
    with open(f"/proc/{pid}/cmdline", "rb") as file:
        words = [os.fsdecode(word) for word in file.read(4096).split(b"\0")]
    name = os.path.basename(words[0]) or "?"
    if re.match(r"python|bash$|sh$|perl|node|ruby", name) and len(words) > 2:
        if words[1] == "-m":
            name += f" -m {words[2]}"
        elif not words[1].startswith("-"):
            name += f" {os.path.basename(words[1])}"
    return "".join(c if c.isprintable() else "?" for c in name)[:60]


class Reader:
    """An initialised NVML, and the values of its devices that do not change."""

    def __init__(self, people: People) -> None:
        pynvml.nvmlInit()
        library, driver = pynvml.nvmlSystemGetNVMLVersion(), pynvml.nvmlSystemGetDriverVersion()
        self._versions = f"NVML {library}, driver {driver}"
        self._people = people
        self._handles: dict[str, Any] = {}  # of the newest complete reading, GPUs and MIG instances
        self._memory_v1 = False
        self._read_us: dict[str, int] = {}  # when each device was last in a complete reading
        self._groups = Groups(pynvml)
        # Early R535 drivers put longer records into the _v3 lists; they are recognised by the functions that they have.
        size, details = "nvmlDeviceGetConfComputeMemSizeInfo", "nvmlDeviceGetRunningProcessDetailList"
        suffixes = ("_v2", "") if _has(size) and not _has(details) else ("_v3", "_v2", "")
        # of the newest call for processes that this library has
        self._suffix = next(s for s in suffixes if not s or _has(f"nvmlDeviceGetComputeRunningProcesses{s}"))
        self._record: Any = _Listed if self._suffix else _ListedV1

    def read(self, uuids: list[str] | None) -> Fields:
        """Return the answer to a question. Raises if NVML does not work."""
        answer: Fields = {"devices": [], "samples": [], "nameless": [], "versions": self._versions}
        if uuids is None:
            self._handles = {}
            for index in range(pynvml.nvmlDeviceGetCount()):
                try:
                    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                    uuid = pynvml.nvmlDeviceGetUUID(handle)
                except pynvml.NVMLError as error:
                    answer["nameless"].append((index, _words(error)))
                    continue
                self._handles[uuid] = handle
                answer["devices"] += self._devices(uuid, index, handle)
            self._groups.name(answer["devices"], self._handles)
        wanted = list(self._handles) if uuids is None else uuids
        answer["samples"] = [self._sample(uuid, whole=uuids is None) for uuid in wanted]
        if uuids is None:
            self._people.forget_unlisted()
        return {**answer, "at": time.time()}

    def _devices(self, uuid: str, index: int, handle: Any) -> list[Fields]:
        """Return a GPU, and its instances if it is in MIG mode. An error here shows in its sample, too."""
        device: Fields = {"uuid": uuid, "index": index, "name": "GPU that does not answer"}
        parts: list[Fields] = []
        try:
            device["name"] = pynvml.nvmlDeviceGetName(handle)
            pci = _maybe(pynvml.nvmlDeviceGetPciInfo, handle)
            device["bus_id"] = os.fsdecode(pci.busId) if pci else ""
            device["unified_memory"] = bool(UNIFIED.search(device["name"]))
            device |= self._board(handle)
            mode = _maybe(pynvml.nvmlDeviceGetComputeMode, handle)
            device["compute_mode"] = COMPUTE_MODES.get(mode, "default")
            device["mig_parent"] = (_maybe(pynvml.nvmlDeviceGetMigMode, handle) or [0])[0] == 1
            slots = _maybe(pynvml.nvmlDeviceGetMaxMigDeviceCount, handle) if device["mig_parent"] else 0
            parts = [part for slot in range(slots or 0) for part in self._instance(device, handle, slot)]
        except pynvml.NVMLError as error:
            _words(error)
        return [device, *parts]

    def _instance(self, parent: Fields, handle: Any, slot: int) -> list[Fields]:
        try:
            part = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, slot)
        except pynvml.NVMLError:
            return []  # a free slot
        uuid = pynvml.nvmlDeviceGetUUID(part)
        self._handles[uuid] = part
        own = {"uuid": uuid, "name": pynvml.nvmlDeviceGetName(part), "parent_uuid": parent["uuid"]}
        return [{**parent, **own, "mig_parent": False, **self._board(part)}]

    def _sample(self, uuid: str, whole: bool) -> Fields:
        """Read one device. `whole` adds the values that take a board long."""
        sample: Fields = {"uuid": uuid, "at": time.time(), "processes": None}
        try:
            handle = self._handles.get(uuid) or pynvml.nvmlDeviceGetHandleByUUID(uuid)
            memory = self._memory(handle)
            processes = self._processes(handle, memory)
            self._add_utilisation(uuid, handle, processes, whole)
            use = _maybe(pynvml.nvmlDeviceGetUtilizationRates, handle)
            extra = self._extra(handle) if whole else {}
        except pynvml.NVMLError as error:
            self._handles.pop(uuid, None)
            return {**sample, "error": _words(error)}
        self._handles[uuid] = handle
        utilisation = None if use is None else use.gpu / 100
        return {**sample, **memory, **extra, "processes": processes, "utilisation": utilisation}

    def _extra(self, handle: Any) -> Fields:
        energy = _maybe(pynvml.nvmlDeviceGetTotalEnergyConsumption, handle)
        errors = _maybe(
            pynvml.nvmlDeviceGetTotalEccErrors,
            handle,
            pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
            pynvml.NVML_VOLATILE_ECC,
        )
        rows = _maybe(pynvml.nvmlDeviceGetRemappedRows, handle)
        power_mw = _maybe(pynvml.nvmlDeviceGetPowerUsage, handle)
        return {
            "uncorrectable": errors,
            "remap_failed": bool(rows and rows[3]),
            "temperature_c": _maybe(pynvml.nvmlDeviceGetTemperature, handle, pynvml.NVML_TEMPERATURE_GPU),
            "power_w": None if power_mw is None else power_mw / 1000,
            "energy_j": None if energy is None else energy / 1000,
        }

    def _board(self, handle: Any) -> Fields:
        """Return the total memory, and the part that the driver reserves (in memory v1 that counts as used)."""
        memory = self._memory(handle)
        return {name: memory[name] for name in ("total_bytes", "reserved_bytes") if name in memory}

    def _memory(self, handle: Any) -> Fields:
        """Read memory v2, whose `used` is without the driver's reserve; v1 only where there is no v2."""
        if not self._memory_v1:
            try:
                info = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
                return {**_in_bytes(info), "reserved_bytes": info.reserved}
            except pynvml.NVMLError as error:
                if error.value not in UNSUPPORTED:
                    raise
                self._memory_v1 = error.value == FUNCTION_NOT_FOUND
        info = _maybe(pynvml.nvmlDeviceGetMemoryInfo, handle)
        if info is None:
            return {"used_bytes": None, "total_bytes": None}
        return {**_in_bytes(info), "memory_includes_reserve": True}

    def _processes(self, handle: Any, memory: Fields) -> list[Fields] | None:
        """Return the processes on the device; None where they cannot be identified (container, WSL, no permission)."""
        listed: dict[int, Fields] = {}
        are_known = True
        for kind, name in (("G", "Graphics"), ("C", "Compute"), ("M", "MPSCompute")):
            records = _maybe(self._list, handle, name)
            if records is None and kind == "C":
                return None
            for record in records or ():
                who = self._people.of(record.pid)
                are_known &= who is not None
                used = None if record.used == UNKNOWN_BYTES else record.used
                listed[record.pid] = {"pid": record.pid, "used_bytes": used, "kind": kind, **(who or {})}
        hidden = HIDDEN_BYTES + (RESERVE_BYTES if "memory_includes_reserve" in memory else 0)
        are_known &= bool(listed) or (memory["used_bytes"] or 0) <= hidden
        return list(listed.values()) if are_known else None

    def _add_utilisation(self, uuid: str, handle: Any, processes: list[Fields] | None, whole: bool) -> None:
        """Add to each process how much it has worked at most since the last complete reading, where the driver tells.

        It tells only who has worked. If that is somebody who is not listed, the others may be idle or not.
        """
        now_us = time.time_ns() // 1000
        since_us = min(self._read_us.get(uuid, now_us), now_us - RECENT_US)
        if whole:
            self._read_us[uuid] = now_us
        if not processes:
            return
        most: dict[int, float] = {}
        try:
            for record in pynvml.nvmlDeviceGetProcessUtilization(handle, since_us):
                use = max(record.smUtil, record.encUtil, record.decUtil)
                if use <= 100:  # some drivers leave records that are not filled
                    most[record.pid] = max(use / 100, most.get(record.pid, 0.0))
        except pynvml.NVMLError as error:
            if error.value not in (SUCCESS, NOT_FOUND):  # else nobody has worked
                return
        unlisted = any(most[pid] for pid in most.keys() - {process["pid"] for process in processes})
        for process in processes:
            process["utilisation"] = most.get(process["pid"], None if unlisted else 0.0)

    def _list(self, handle: Any, name: str) -> list[Any]:
        function = pynvml._nvmlGetFunctionPointer(f"nvmlDeviceGet{name}RunningProcesses{self._suffix}")
        room = 64
        while True:
            count = ctypes.c_uint(room)
            records = (self._record * room)()
            code = function(handle, ctypes.byref(count), records)
            if code == SUCCESS:
                return list(records[: count.value])
            if code != INSUFFICIENT_SIZE:
                raise pynvml.NVMLError(code)
            room = max(count.value, room) * 2


def _in_bytes(info: Any) -> Fields:
    return {"used_bytes": info.used if info.total else None, "total_bytes": info.total or None}


def _has(name: str) -> bool:
    try:
        pynvml._nvmlGetFunctionPointer(name)
    except pynvml.NVMLError:
        return False
    return True


def _maybe(function: Callable[..., Any], *args: Any) -> Any:
    """Return the result of the call; None where this device, driver or user does not have it."""
    try:
        return function(*args)
    except pynvml.NVMLError as error:
        if error.value in UNSUPPORTED:
            return None
        raise


def _words(error: Any) -> str:
    """Return a device's error as text for a sample. Raises it again if it is about NVML as a whole."""
    if error.value in AS_A_WHOLE:
        raise error
    return "lost" if error.value in LOST else str(error)


def _answer(reader: Reader | None, people: People, uuids: list[str] | None) -> tuple[Reader, Fields]:
    """Return a reader and its answer. If NVML has stopped to work since the last question, the reader is a new one."""
    if reader is not None:
        try:
            return reader, reader.read(uuids)
        except pynvml.NVMLError as error:
            if error.value not in AS_A_WHOLE:
                raise
        with suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()
    reader = Reader(people)
    return reader, reader.read(uuids)


def main() -> int:
    """Answer questions until the other side is gone, or NVML fails."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: never outlive the dispatcher
    people = People()
    reader: Reader | None = None
    with open(os.dup(0), "wb") as replies:
        for line in sys.stdin.buffer:
            try:
                reader, answer = _answer(reader, people, json.loads(line))
            except Exception as error:
                answer = {"trouble": [type(error).__name__, str(error)]}
            replies.write(json.dumps(answer).encode() + b"\n")
            replies.flush()
            if "trouble" in answer:
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
