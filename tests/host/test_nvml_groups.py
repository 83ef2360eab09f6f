"""Which boards belong together, asked of a fake NVML, since the simulated driver has no NVLink."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from gpusched.host.gpus.nvml_groups import Groups


class FakeNvml:
    """Boards are numbers. `links` are the pairs that reach each other over NVLink."""

    NVMLError = KeyError

    def __init__(
        self,
        links: Collection[tuple[int, int]] = (),
        nodes: list[int] | None = None,
        lacks: Collection[str] = (),
    ) -> None:
        self.links, self.nodes, self.lacks = {frozenset(pair) for pair in links}, nodes, lacks
        self.calls = 0

    def __getattribute__(self, name: str) -> Any:
        if name != "lacks" and name in self.lacks:
            raise AttributeError(name)
        return super().__getattribute__(name)

    def nvmlDeviceGetP2PStatus(self, one: int, other: int, index: int) -> int:
        self.calls += 1
        assert index == 2  # NVML_P2P_CAPS_INDEX_NVLINK
        return 0 if {one, other} in self.links else 4

    def nvmlDeviceGetTopologyCommonAncestor(self, one: int, other: int) -> int:
        if self.nodes is None:
            raise self.NVMLError("not supported")
        return 10 if self.nodes[one] == self.nodes[other] else 50


def groups_of(nvml: FakeNvml, boards: int) -> list[str]:
    return named(Groups(nvml), boards)


def named(groups: Groups, boards: int) -> list[str]:
    devices: list[dict[str, Any]] = [{"uuid": f"GPU-{n}"} for n in range(boards)]
    groups.name(devices, {f"GPU-{n}": n for n in range(boards)})
    return [device["group"] for device in devices]


def test_pairs_that_are_bridged_are_groups() -> None:
    assert groups_of(FakeNvml([(0, 2), (3, 1)]), 4) == ["NVLink 0", "NVLink 1", "NVLink 0", "NVLink 1"]


def test_boards_that_are_linked_through_others_are_one_group() -> None:
    """A hybrid mesh: not every board has a link to every other one."""
    assert groups_of(FakeNvml([(n, (n + 3) % 8) for n in range(8)]), 8) == ["NVLink 0"] * 8


def test_boards_behind_the_same_switches_are_one_group() -> None:
    assert groups_of(FakeNvml([(a, b) for a in range(8) for b in range(a)]), 8) == ["NVLink 0"] * 8


def test_boards_that_are_linked_to_none_go_by_their_numa_node() -> None:
    assert groups_of(FakeNvml([(1, 2)], nodes=[0, 0, 0, 0]), 4) == ["NUMA 0", "NVLink 0", "NVLink 0", "NUMA 0"]


def test_boards_without_links_go_by_their_numa_node() -> None:
    assert groups_of(FakeNvml(nodes=[0, 0, 1, 1, 2, 0]), 6) == ["NUMA 0", "NUMA 0", "NUMA 1", "NUMA 1", "", "NUMA 0"]


def test_what_this_nvml_does_not_have_joins_nothing() -> None:
    lacks = {"nvmlDeviceGetP2PStatus", "nvmlDeviceGetTopologyCommonAncestor"}
    assert groups_of(FakeNvml([(0, 1)], lacks=lacks), 2) == ["", ""]


def test_it_is_asked_once_while_the_boards_are_the_same() -> None:
    nvml = FakeNvml([(0, 1)])
    groups = Groups(nvml)
    assert named(groups, 2) == named(groups, 2) == ["NVLink 0", "NVLink 0"]
    asked = nvml.calls
    assert named(groups, 2) and nvml.calls == asked
    assert named(groups, 3) == ["NVLink 0", "NVLink 0", ""] and nvml.calls > asked


def test_an_instance_has_the_group_of_its_board() -> None:
    devices: list[dict[str, Any]] = [
        {"uuid": "GPU-0"},
        {"uuid": "MIG-0", "parent_uuid": "GPU-0"},
        {"uuid": "GPU-1"},  # does not answer
    ]
    Groups(FakeNvml(nodes=[0, 0])).name(devices, {"GPU-0": 0, "GPU-1": 1, "MIG-0": 9})
    assert [device["group"] for device in devices] == ["NUMA 0"] * 3
