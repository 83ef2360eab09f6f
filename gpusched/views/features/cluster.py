"""The nodes of a cluster -> the page of `gpusched cluster status`, and their GPUs. Reads no clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpusched.common.text import count
from gpusched.core.plan.board import ClusterView, NodeView
from gpusched.views import tables
from gpusched.views.tables import Line

CLOCK_ERROR_S = 5.0


def cluster_page(name: str, address: str, view: ClusterView | None, now: float) -> list[Line]:
    if view is None:
        text = f"{name}: the head ({address}) is not at work; `gpusched cluster up HOSTS.yaml` starts it"
        return [tables.line((text, tables.TONES["bad"]))]
    lines = [tables.line((f"{name}: head at {address}, {count(len(view.nodes), 'node')}", tables.HEAD))]
    head = ["node", "GPUs", "running", "reserved", "heard", "tags", ""]
    rows = [_row(node, now) for node in view.nodes]
    return lines + tables.grid(head, rows, right="GPUs running reserved heard", indent=2)


def _row(node: NodeView, now: float) -> list[tables.Cell | list[tables.Cell]]:
    gpus = str(len(node.board.devices)) if node.board is not None else "?"
    note = node.closed
    if abs(node.clock_error_s) > CLOCK_ERROR_S:
        note = "; ".join(filter(None, (note, f"its clock is {node.clock_error_s:+.0f} s off")))
    heard = f"{max(0.0, now - node.heard_at):.0f} s ago"
    return [node.name, gpus, str(node.running), str(node.reserved), heard, ",".join(node.tags), note]


def devices_page(nodes: Sequence[Mapping[str, Any]]) -> list[Line]:
    """Return the GPUs of all nodes, as `operations.look.nodes.node_devices` has them."""
    rows: list[list[tables.Cell | list[tables.Cell]]] = []
    for node in nodes:
        note = node["closed"] or ("" if node["devices"] else "no GPU")
        rows += [[node["node"], "", "", note]] if note else []
        for each in node["devices"]:
            rows.append([node["node"], f"GPU {each['index']}", each["name"], f"{each['state']}: {each['why']}"])
    return tables.grid(["node", "GPU", "model", ""], rows)
