"""The file of samples: bounded, for its owner alone, and readable whatever a killed dispatcher has left."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpusched.core.samples import GpuStretch, Stretch
from gpusched.host.queue import samples
from gpusched.host.queue.samples import SampleFile, read


def stretch(at: float, jobs: int = 2) -> Stretch:
    row = {str(int(at) + n): [10.0, 4000.5] for n in range(jobs)}
    gpus = {f"GPU-{n}": GpuStretch(n, 81920.0, 4000.0, 5000.0, 0.5, 10.0, 9.0, jobs=dict(row)) for n in range(8)}
    return Stretch(at, at + 10, 10.0, {"queued": 3.0}, {"devices": 3.0}, gpus)


def test_what_is_appended_is_read(tmp_path: Path) -> None:
    path = str(tmp_path / "samples.jsonl")
    assert read(path) == []
    ones = [stretch(10.0 * n) for n in range(3)]
    for one in ones:
        SampleFile(path).append(one)  # each time another dispatcher
    assert read(path) == ones
    assert os.stat(path).st_mode & 0o777 == 0o600


@pytest.mark.parametrize("cut", [1, 40, 700])
def test_a_torn_tail_costs_its_own_line_alone(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "samples.jsonl"
    file = SampleFile(str(path))
    file.append(stretch(0.0))
    file.append(stretch(10.0))
    os.truncate(path, path.stat().st_size - cut)
    SampleFile(str(path)).append(stretch(20.0))
    assert [each.began_at for each in read(str(path))] == ([0.0, 10.0, 20.0] if cut == 1 else [0.0, 20.0])


@pytest.mark.parametrize("junk", [b"[1]\n", b"{}\n", b'[1,2,3,{},{},{"g":7}]\n', b"\xff\x00\n", b"[" * 5000 + b"\n"])
def test_lines_that_say_nothing_are_passed_over(tmp_path: Path, junk: bytes) -> None:
    path = tmp_path / "samples.jsonl"
    path.write_bytes(junk)
    SampleFile(str(path)).append(stretch(0.0))
    assert [each.began_at for each in read(str(path))] == [0.0]


@pytest.mark.parametrize("jobs", [2, 40])
def test_it_stays_bounded_and_keeps_the_newest_finest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jobs: int
) -> None:
    monkeypatch.setattr(samples, "LARGEST_BYTES", 40_000)
    path = tmp_path / "samples.jsonl"
    file, largest = SampleFile(str(path)), 0
    for n in range(300):
        file.append(stretch(10.0 * n, jobs))
        largest = max(largest, path.stat().st_size)
    found = read(str(path))
    assert largest <= 40_000 and sorted(os.listdir(tmp_path)) == ["samples.jsonl"]
    assert found[-1].ended_at == 3_000 and found[-1].seconds == 10
    assert jobs == 40 or (found[0].began_at == 0 and sum(each.seconds for each in found) == 3_000)
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_killed_rewrite_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "samples.jsonl"
    file = SampleFile(str(path))
    file.append(stretch(0.0))
    (tmp_path / "samples.jsonl.tmp").write_bytes(b"half")
    monkeypatch.setattr(samples, "LARGEST_BYTES", 2000)
    file.append(stretch(10.0))
    assert [each.ended_at for each in read(str(path))] == [20.0] and os.listdir(tmp_path) == ["samples.jsonl"]
