"""Which boards belong together, asked of a fake NVML, since the simulated driver has no NVLink."""

from __future__ import annotations

from collections.abc import Collection
from types import SimpleNamespace
from typing import Any

import pytest

from gpusched.host.gpus.nvml_groups import Groups

SWITCH_BUS = "00000000:C{}:00.0"
HIDDEN = "00000000:00:00.0"


class FakeNvml:
    """Boards are numbers. `links` is what each link of a board leads to: a bus id, None for one that is down."""

    NVMLError = KeyError

    def __init__(
        self,
        links: dict[int, list[str | None]] | None = None,
        nodes: list[int] | None = None,
        lacks: Collection[str] = (),
        switches: bool = False,
    ) -> None:
        self.links, self.nodes, self.lacks, self.switches = links or {}, nodes, lacks, switches
        self.calls = 0

    def __getattribute__(self, name: str) -> Any:
        if name != "lacks" and name in self.lacks:
            raise AttributeError(name)
        return super().__getattribute__(name)

    def nvmlDeviceGetNvLinkState(self, board: int, link: int) -> int:
        self.calls += 1
        links = self.links[board]
        if link >= len(links):
            raise self.NVMLError("no such link")
        return int(links[link] is not None)

    def nvmlDeviceGetNvLinkRemotePciInfo(self, board: int, link: int) -> Any:
        bus_id = self.links[board][link]
        assert bus_id is not None
        return SimpleNamespace(busId=bus_id.encode())

    def nvmlDeviceGetNvLinkRemoteDeviceType(self, board: int, link: int) -> int:
        return 2 if self.switches else 255

    def nvmlDeviceGetTopologyCommonAncestor(self, one: int, other: int) -> int:
        if self.nodes is None:
            raise self.NVMLError("not supported")
        return 10 if self.nodes[one] == self.nodes[other] else 50


def bus(n: int) -> str:
    return f"00000000:0{n}:00.0"


def groups_of(nvml: FakeNvml, boards: int) -> list[str]:
    return named(Groups(nvml), boards)


def named(groups: Groups, boards: int) -> list[str]:
    devices: list[dict[str, Any]] = [{"uuid": f"GPU-{n}", "bus_id": bus(n)} for n in range(boards)]
    groups.name(devices, {f"GPU-{n}": n for n in range(boards)})
    return [device["group"] for device in devices]


def test_pairs_that_are_bridged_are_groups() -> None:
    links: dict[int, list[str | None]] = {0: [bus(2)], 1: [bus(3)], 2: [bus(0)], 3: [bus(1)]}
    assert groups_of(FakeNvml(links), 4) == ["NVLink 0", "NVLink 1", "NVLink 0", "NVLink 1"]


def test_boards_that_are_linked_through_others_are_one_group() -> None:
    """A hybrid mesh: not every board has a link to every other one."""
    links: dict[int, list[str | None]] = {n: [bus((n + 1) % 8).lower(), bus((n - 1) % 8)] for n in range(8)}
    assert groups_of(FakeNvml(links), 8) == ["NVLink 0"] * 8


def test_boards_behind_the_same_switches_are_one_group() -> None:
    links: dict[int, list[str | None]] = {n: [SWITCH_BUS.format(link % 4) for link in range(12)] for n in range(8)}
    assert groups_of(FakeNvml(links), 8) == ["NVLink 0"] * 8


def test_switches_that_hide_their_address_are_one_fabric() -> None:
    links: dict[int, list[str | None]] = {n: [HIDDEN] * 18 for n in range(4)}
    assert groups_of(FakeNvml(links, switches=True), 4) == ["NVLink 0"] * 4
    lacks = {"nvmlDeviceGetNvLinkRemotePciInfo"}
    assert groups_of(FakeNvml(links, switches=True, lacks=lacks), 4) == ["NVLink 0"] * 4
    assert groups_of(FakeNvml(links), 4) == [""] * 4


def test_links_that_are_down_join_nothing() -> None:
    links: dict[int, list[str | None]] = {0: [None, bus(1)], 1: [None, bus(0)], 2: [None, None], 3: [None]}
    assert groups_of(FakeNvml(links), 4) == ["NVLink 0", "NVLink 0", "", ""]


def test_a_link_to_a_board_that_is_not_shown_here_is_no_company() -> None:
    links: dict[int, list[str | None]] = {0: [bus(7)], 1: []}
    assert groups_of(FakeNvml(links, nodes=[0, 0]), 2) == ["NUMA 0", "NUMA 0"]


def test_boards_without_links_go_by_their_numa_node() -> None:
    nothing: dict[int, list[str | None]] = {n: [] for n in range(6)}
    assert groups_of(FakeNvml(nothing, nodes=[0, 0, 1, 1, 2, 0]), 6) == [
        "NUMA 0",
        "NUMA 0",
        "NUMA 1",
        "NUMA 1",
        "",
        "NUMA 0",
    ]


@pytest.mark.parametrize(
    "lacks",
    [
        {"nvmlDeviceGetNvLinkState"},
        {"nvmlDeviceGetNvLinkRemotePciInfo"},
        {"nvmlDeviceGetNvLinkRemoteDeviceType", "nvmlDeviceGetNvLinkRemotePciInfo"},
        {"nvmlDeviceGetNvLinkState", "nvmlDeviceGetTopologyCommonAncestor"},
    ],
)
def test_what_this_nvml_does_not_have_joins_nothing(lacks: set[str]) -> None:
    links: dict[int, list[str | None]] = {0: [bus(1)], 1: [bus(0)]}
    assert groups_of(FakeNvml(links, lacks=lacks), 2) == ["", ""]


def test_it_is_asked_once_while_the_boards_are_the_same() -> None:
    links: dict[int, list[str | None]] = {0: [bus(1)], 1: [bus(0)], 2: []}
    nvml = FakeNvml(links)
    groups = Groups(nvml)
    assert named(groups, 2) == named(groups, 2) == ["NVLink 0", "NVLink 0"]
    asked = nvml.calls
    assert named(groups, 2) and nvml.calls == asked
    assert named(groups, 3) == ["NVLink 0", "NVLink 0", ""] and nvml.calls > asked


def test_an_instance_has_the_group_of_its_board() -> None:
    devices: list[dict[str, Any]] = [
        {"uuid": "GPU-0", "bus_id": bus(0)},
        {"uuid": "MIG-0", "bus_id": bus(0), "parent_uuid": "GPU-0"},
        {"uuid": "GPU-1"},  # does not answer
    ]
    links: dict[int, list[str | None]] = {0: [], 1: []}
    Groups(FakeNvml(links, nodes=[0, 0])).name(devices, {"GPU-0": 0, "GPU-1": 1, "MIG-0": 9})
    assert [device["group"] for device in devices] == ["NUMA 0"] * 3
