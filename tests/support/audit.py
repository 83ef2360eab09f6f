"""Replay a simulation's log and find jobs that met on one GPU. Changes nothing."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any, NamedTuple


class Clash(NamedTuple):
    """A job started on a GPU while somebody else held it."""

    at: float
    gpu: int
    job: str
    holder: str
    colleague: bool  # the holder was no job of a scheduler

    def __str__(self) -> str:
        whose = "a colleague's process" if self.colleague else "job"
        return f"t={self.at:.3f} GPU {self.gpu}: job {self.job} started while {whose} {self.holder} held it"


class AuditReport(NamedTuple):
    clashes: list[Clash]
    jobs: int
    grabs: int
    ooms: int
    too_early: int  # started before the memory of the last holder was back


def audit(directory: str) -> AuditReport:
    """Read the log. Another user who comes while a job runs is no clash."""
    on_gpu: dict[int, dict[str, dict[str, Any]]] = {}  # gpu -> process -> its grab
    clashes: list[Clash] = []
    jobs: set[str] = set()
    grabs = ooms = too_early = 0
    for event in _events(directory):
        kind, gpu, name = event["event"], event.get("gpu", -1), event.get("name", "")
        if kind == "grab":
            grabs += 1
            if not event["foreign"]:
                jobs.add(event["job"])
                too_early += bool(event["unreleased"])
                clashes += [
                    Clash(event["t"], gpu, event["job"], other["job"], bool(other["foreign"]))
                    for other in on_gpu.get(gpu, {}).values()
                    if other["job"] != event["job"]
                ]
            on_gpu.setdefault(gpu, {})[name] = event
        elif kind in ("exit", "dead"):
            on_gpu.get(gpu, {}).pop(name, None)
        elif kind == "oom":
            ooms += 1
    return AuditReport(clashes, len(jobs), grabs, ooms, too_early)


def _events(directory: str) -> Iterator[dict[str, Any]]:
    try:
        with open(os.path.join(directory, "events.log"), encoding="utf-8") as file:
            for line in file:
                yield json.loads(line)
    except FileNotFoundError:
        return
