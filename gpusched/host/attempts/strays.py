"""The processes of attempts: noted while their shepherds live, found by these notes and other signs after that."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress

from gpusched.common import processes
from gpusched.host.attempts import attempt_dir


def find(mark: Mapping[str, str], marker: tuple[bytes, ...], seen: Mapping[int, int]) -> list[int]:
    """Return the live processes of an attempt without a shepherd.

    Each sign can be missing: a process may write over its environment, leave its session, and be born between polls.
    """
    found = [pid for pid, start_ticks in seen.items() if processes.process_start(pid) == start_ticks]
    found += processes.marked_processes(marker)
    session = _process(mark, mark.get("session", ""))
    if session is not None:
        found += processes.session_members(*session)
    return list(dict.fromkeys(found + processes.descendants(*found))) if found else []


def _process(mark: Mapping[str, str], words: str) -> tuple[int, int] | None:
    """Return a process of this mark, written as pid and start time, if the mark is of this boot."""
    try:
        pid, start_ticks = map(int, words.split())
    except ValueError:
        return None
    return (pid, start_ticks) if pid > 0 and mark.get("boot_id") == processes.boot_id() else None


def shepherd_of(mark: Mapping[str, str]) -> tuple[int, int] | None:
    """Return pid and start time of the shepherd that a mark names, if the mark is of this boot."""
    return _process(mark, f"{mark.get('pid')} {mark.get('start_ticks')}")


class Census:
    """Notes from time to time which processes descend from which shepherd, since parents may end before their children.

    Each time only the processes are read that have come since the time before.
    """

    def __init__(self) -> None:
        self._known: set[int] = set()

    def note(self, attempts: Iterable[tuple[str, Mapping[str, str], dict[int, int]]]) -> None:
        """Bring up to date what was seen of each attempt: a directory, its mark, and start times by pid."""
        attempts = list(attempts)
        for _, mark, seen in attempts:
            shepherd = shepherd_of(mark)
            if not seen and shepherd is not None:
                seen.update([shepherd])
        if not attempts or not all(seen for _, _, seen in attempts):
            return  # a shepherd that has just got its attempt has no mark yet, but soon children
        before = [dict(seen) for _, _, seen in attempts]
        self._update([seen for _, _, seen in attempts])
        for (directory, _, seen), old in zip(attempts, before, strict=True):
            if seen != old:
                save(directory, seen)

    def _update(self, families: Iterable[dict[int, int]]) -> None:
        """Add to the families those that have come, and take out those that have gone."""
        pids = set(processes.all_pids())
        new = {pid: fields for pid in pids - self._known if (fields := processes.process_stat(pid)) is not None}
        self._known = pids
        family_of: dict[int, dict[int, int]] = {}
        for family in families:
            for pid in family.keys() - pids:
                del family[pid]
            family_of |= dict.fromkeys(family, family)
        for pid in list(new):
            chain = []
            while pid in new and pid not in family_of:
                chain.append((pid, int(new[pid][19])))
                pid = int(new.pop(pid)[1])
            if pid in family_of and processes.process_start(pid) == family_of[pid][pid]:
                family_of[pid].update(chain)
                family_of |= dict.fromkeys([child for child, _ in chain], family_of[pid])


def save(directory: str, seen: Mapping[int, int]) -> None:
    """Keep the processes of an attempt for the next dispatcher, as far as the disk has room."""
    with suppress(OSError), open(attempt_dir.beside(directory, attempt_dir.SEEN), "w", encoding="ascii") as file:
        file.writelines(f"{pid} {start_ticks}\n" for pid, start_ticks in seen.items())


def load(directory: str, mark: Mapping[str, str]) -> dict[int, int]:
    """Return the processes that an earlier dispatcher has seen of an attempt since this boot."""
    with (
        suppress(OSError),
        open(attempt_dir.beside(directory, attempt_dir.SEEN), encoding="ascii", errors="replace") as file,
    ):
        return dict(process for line in file if (process := _process(mark, line)) is not None)
    return {}
