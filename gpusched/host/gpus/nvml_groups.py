"""Groups of boards that belong together, by NVLink or by NUMA node. Measures nothing.

Boards whose links lead to each other, or to the same other end, are one group: behind NVSwitches no board is linked to
another one directly. The other boards are grouped by their NUMA nodes. A connection that this NVML, driver or board
does not report counts as none.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

MAX_LINKS = 36  # of one board, in any NVML so far
SWITCH = 2  # what NVML calls an NVSwitch at the other end of a link
SAME_NODE = 40  # the widest common ancestor within one NUMA node


class Groups:
    """The groups of one initialised NVML, determined again only when the boards have changed."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self._known: tuple[frozenset[str], dict[str, str]] = frozenset(), {}

    def name(self, devices: Iterable[dict[str, Any]], handles: Mapping[str, Any]) -> None:
        """Set the `group` of each device; a MIG instance has the one of its board."""
        devices = list(devices)
        boards = {d["uuid"]: d.get("bus_id", "") for d in devices if not d.get("parent_uuid")}
        if self._known[0] != boards.keys():
            self._known = frozenset(boards), self._find(boards, handles)
        for device in devices:
            device["group"] = self._known[1].get(device.get("parent_uuid") or device["uuid"], "")

    def _find(self, boards: Mapping[str, str], handles: Mapping[str, Any]) -> dict[str, str]:
        groups: dict[str, str] = {}
        at = {bus_id.lower(): uuid for uuid, bus_id in boards.items() if bus_id}
        linked = [{uuid, *(at.get(end, end) for end in self._far_ends(handles[uuid]))} for uuid in boards]
        _label(groups, "NVLink", boards, linked)
        rest = [uuid for uuid in boards if uuid not in groups]
        near = [{a, b} for n, a in enumerate(rest) for b in rest[:n] if self._is_near(handles[a], handles[b])]
        _label(groups, "NUMA", boards, near)
        return groups

    def _far_ends(self, handle: Any) -> set[str]:
        """Return the other ends of a board's active links: bus ids, or "switch" for an end that hides its bus id."""
        ends: set[str] = set()
        for link in range(MAX_LINKS):
            active = self._ask("nvmlDeviceGetNvLinkState", handle, link)
            if active is None:
                break  # no such link, or none at all
            if not active:
                continue
            pci = self._ask("nvmlDeviceGetNvLinkRemotePciInfo", handle, link)
            bus_id = os.fsdecode(pci.busId).lower() if pci else ""
            if bus_id.strip("0:."):
                ends.add(bus_id)
            elif self._ask("nvmlDeviceGetNvLinkRemoteDeviceType", handle, link) == SWITCH:
                ends.add("switch")
        return ends

    def _is_near(self, one: Any, other: Any) -> bool:
        level = self._ask("nvmlDeviceGetTopologyCommonAncestor", one, other)
        return level is not None and level <= SAME_NODE

    def _ask(self, function: str, *args: Any) -> Any:
        """Return the result of the call; None where it fails, or NVML does not have it."""
        try:
            return getattr(self._nvml, function)(*args)
        except (AttributeError, self._nvml.NVMLError):
            return None


def _label(names_by_uuid: dict[str, str], kind: str, boards: Iterable[str], joined: Iterable[set[str]]) -> None:
    """Fill `names_by_uuid`: "NUMA 0", "NUMA 1", … in the order of the boards.

    Sets of `joined` that share a board are one group. A group of one board gets no name.
    """
    groups: list[set[str]] = []
    for members in joined:
        touching = [group for group in groups if group & members]
        groups = [group for group in groups if group not in touching] + [members.union(*touching)]
    names: dict[int, str] = {}
    for uuid in boards:
        for n, group in enumerate(groups):
            if uuid in group and len(group.intersection(boards)) > 1:
                names_by_uuid[uuid] = names.setdefault(n, f"{kind} {len(names)}")
