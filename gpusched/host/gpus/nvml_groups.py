"""Groups of boards that belong together, by NVLink or by NUMA node. Measures nothing.

Boards that reach each other over NVLink, directly, through an NVSwitch or through other boards, are one group. The
other boards are grouped by their NUMA nodes. A connection that this NVML, driver or board does not report counts as
none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from typing import Any

NVLINK, REACHED = 2, 0  # the question for NVML about a pair of boards, and the answer if they are connected
SAME_NODE = 40  # the widest common ancestor within one NUMA node


class Groups:
    """The groups of one initialised NVML, determined again only when the boards have changed."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self._known: tuple[frozenset[str], dict[str, str]] = frozenset(), {}

    def name(self, devices: Iterable[dict[str, Any]], handles: Mapping[str, Any]) -> None:
        """Set the `group` of each device; a MIG instance has the one of its board."""
        devices = list(devices)
        boards = [device["uuid"] for device in devices if not device.get("parent_uuid")]
        if self._known[0] != set(boards):
            names = _name_groups("NVLink", boards, handles, self._is_linked)
            names |= _name_groups("NUMA", [uuid for uuid in boards if uuid not in names], handles, self._is_near)
            self._known = frozenset(boards), names
        for device in devices:
            device["group"] = self._known[1].get(device.get("parent_uuid") or device["uuid"], "")

    def _is_linked(self, one: Any, other: Any) -> bool:
        return bool(self._ask("nvmlDeviceGetP2PStatus", one, other, NVLINK) == REACHED)

    def _is_near(self, one: Any, other: Any) -> bool:
        level = self._ask("nvmlDeviceGetTopologyCommonAncestor", one, other)
        return level is not None and level <= SAME_NODE

    def _ask(self, function: str, *args: Any) -> Any:
        """Return the result of the call; None where it fails, or NVML does not have it."""
        try:
            return getattr(self._nvml, function)(*args)
        except (AttributeError, self._nvml.NVMLError):
            return None


def _name_groups(
    kind: str, boards: list[str], handles: Mapping[str, Any], is_joined: Callable[[Any, Any], bool]
) -> dict[str, str]:
    """Return "NUMA 0", "NUMA 1", … by board, in the order of the boards. A board that is joined to none has no name."""
    groups: list[list[str]] = []
    for uuid in boards:
        joined = [group for group in groups if any(is_joined(handles[other], handles[uuid]) for other in group)]
        groups = [group for group in groups if group not in joined] + [[uuid, *chain(*joined)]]
    shared = sorted((group for group in groups if len(group) > 1), key=lambda group: min(map(boards.index, group)))
    return {uuid: f"{kind} {n}" for n, group in enumerate(shared) for uuid in group}
