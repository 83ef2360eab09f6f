"""What a merge leaves behind: whole files or none, whatever kills it; and what it refuses to replace or to read."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import click
import pytest
from gpusched.commands.merge.__main__ import MergeParser
from gpusched.commands.merge.write.output import MergeOutput, temporary_path

from gpusched.cli import main as front
from gpusched.common.option_table import options_of
from gpusched.shards.merge_options import MergeOptions
from tests.support.merging import FORMATS, merge, write_plan

Capture = pytest.CaptureFixture[str]

# Ends itself without a word at the n-th of these calls.
KILLED = """
import os, signal, sys
from gpusched.commands.merge import __main__, merge
from gpusched.commands.merge.write.output import MergeOutput
left = int(sys.argv[1])
def deadly(call):
    def counted(*words, **more):
        global left
        left -= 1
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)
        return call(*words, **more)
    return counted
for name in ("fsync", "rename", "unlink", "write"):
    setattr(os, name, deadly(getattr(os, name)))
MergeOutput.write = deadly(MergeOutput.write)
sys.exit(__main__.main(sys.argv[2:]))
"""


def stage(*words: object, **options: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gpusched.commands.merge", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, **options)  # type: ignore[call-overload,no-any-return]


def written(place: Path, form: str = "jsonl", count: int = 3) -> list[Path]:
    paths = [place / f"p{number}.{form}" for number in range(count)]
    for number, path in enumerate(paths):
        FORMATS[form][0](path, list(range(number * 9, number * 9 + 9)))
    return paths


def names(place: Path) -> list[str]:
    return sorted(path.name for path in place.iterdir())


# ---- killed ----------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("form", ["jsonl", "npz"])
def test_killed_at_any_step_and_started_again_it_makes_the_same_file(tmp_path: Path, form: str) -> None:
    (tmp_path / "right").mkdir()
    parts = written(tmp_path, form)
    assert stage("-o", tmp_path / "right" / f"all.{form}", *parts).returncode == 0
    right = (tmp_path / "right" / f"all.{form}").read_bytes()
    out = tmp_path / "killed" / f"all.{form}"
    out.parent.mkdir()
    words = ["-o", str(out), *map(str, parts)]
    for step in range(1, 40):
        done = subprocess.run([sys.executable, "-c", KILLED, str(step), *words], capture_output=True)
        if done.returncode == 0:
            break
        assert done.returncode == -signal.SIGKILL, done.stderr
        assert not out.exists() or out.read_bytes() == right
    assert step > 5 and done.returncode == 0, "it was never killed, or never let live"
    assert out.read_bytes() == right
    assert names(out.parent) == [f"all.{form}", "all_merged_metadata.json"]


def tried(*words: object) -> subprocess.CompletedProcess[bytes]:
    """A merge that is killed at the step that the first word numbers."""
    done = subprocess.run([sys.executable, "-c", KILLED, *map(str, words)], capture_output=True)
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return done


@pytest.mark.slow
@pytest.mark.parametrize("before", ["nothing", "incomplete", "complete"])
def test_killed_at_any_step_and_started_with_one_more_part_it_goes_on(
    tmp_path: Path, capsys: Capture, before: str
) -> None:
    """First two parts of four stand there, or none; then a merge of three is killed; then all four are there."""
    for step in range(1, 40):
        place = tmp_path / str(step)
        place.mkdir()
        parts, out = written(place, count=4), place / "all.jsonl"
        right = [b"".join(path.read_bytes() for path in parts[:count]) for count in range(5)]
        partly = ["--allow-partial"] if before in ("nothing", "incomplete") else []
        if before != "nothing":
            absent = [place / "p9.jsonl"] if before == "incomplete" else []
            assert merge(capsys, "-o", out, *parts[:2], *absent, *partly).code == 0
        last = parts[3].read_bytes()
        parts[3].unlink()
        given = parts if partly else parts[:3]
        done = tried(step, "-o", out, *given, *partly)
        assert not out.exists() or out.read_bytes() in right, "it is whole, whichever it is"
        parts[3].write_bytes(last)
        said = merge(capsys, "-o", out, *parts)
        if said.code:  # it was killed when the output had its name, and no metadata yet: the same parts complete it
            assert "exists, and is not as a merge has made it" in said.err, (step, said)
            assert merge(capsys, "-o", out, *parts[:3]).code == 0 and out.read_bytes() == right[3]
            said = merge(capsys, "-o", out, *parts)
        assert said.code == 0, (step, said)
        assert out.read_bytes() == right[4]
        assert names(place) == ["all.jsonl", "all_merged_metadata.json", *[path.name for path in parts]], step
        if done.returncode == 0:
            break
    assert step > 6 and done.returncode == 0, "it was never killed, or never let live"


@pytest.mark.slow
def test_killed_at_any_step_it_makes_nobodys_file_a_merges(tmp_path: Path, capsys: Capture) -> None:
    for step in range(1, 40):
        place = tmp_path / str(step)
        place.mkdir()
        parts, out = written(place), place / "all.jsonl"
        out.write_text("mine\n")
        done = tried(step, "-o", out, *parts[:2], "--overwrite")
        mine = out.read_text() == "mine\n"
        said = merge(capsys, "-o", out, *parts[:2])
        assert said.code == (1 if mine else 0), (step, said)
        assert (out.read_text() == "mine\n") == mine
        assert merge(capsys, "-o", out, *parts, "--overwrite").code == 0
        assert names(place) == ["all.jsonl", "all_merged_metadata.json", *[path.name for path in parts]]
        if done.returncode == 0:
            break
    assert step > 6 and done.returncode == 0 and not mine


# Says that it reads a part, and goes on with that. It sleeps in short pieces: a signal that comes right before a system
# call is only seen after it, and a read of a pipe might never end.
STALLED = """
import signal, sys, time
from pathlib import Path
from gpusched.commands.merge import __main__ as stage
from gpusched.commands.merge.formats import txt
def stall(self, part, line, block, report):
    Path(sys.argv[1]).touch()
    while True:
        time.sleep(0.01)
txt.TextLines.check = stall
signal.signal(signal.SIGTERM, stage._terminate)
sys.exit(stage.main(sys.argv[2:]))
"""


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_leaves_nothing_behind(tmp_path: Path, number: signal.Signals, code: int) -> None:
    ready, place = tmp_path / "ready", tmp_path / "place"
    place.mkdir()
    (place / "a.txt").write_text("a\n")
    words = [sys.executable, "-c", STALLED, *map(str, (ready, "-o", place / "all.txt", place / "a.txt"))]
    with subprocess.Popen(words) as process:
        try:
            deadline = time.monotonic() + 60
            while not ready.exists():
                assert process.poll() is None and time.monotonic() < deadline, "it never reads the part"
                time.sleep(0.01)
            process.send_signal(number)
            assert process.wait(timeout=60) == code
        finally:
            process.kill()
    assert names(place) == ["a.txt"]


def test_what_other_merges_left_is_swept_and_what_they_write_is_not(tmp_path: Path, capsys: Capture) -> None:
    parts = written(tmp_path)
    live = Path(temporary_path(str(tmp_path / "all.jsonl")))
    dead = tmp_path / live.name.replace(f"-{os.getpid()}-", f"-{os.getpid()}-1")
    other = Path(temporary_path(str(tmp_path / "other.jsonl")))
    for path in (dead, other):
        path.write_text("x")
    assert merge(capsys, "-o", tmp_path / "all.jsonl", *parts).code == 0
    assert not dead.exists() and other.exists()
    dead.mkdir()  # cannot be unlinked, as what another user left in a directory like /tmp
    assert merge(capsys, "-o", tmp_path / "all.jsonl", *parts).code == 0


@pytest.mark.slow
@pytest.mark.parametrize("stream", ["stdout", "stderr"])
@pytest.mark.parametrize("gone", ["pipe", "full", "closed"])
def test_a_merge_that_nobody_listens_to_makes_all_outputs(tmp_path: Path, stream: str, gone: str) -> None:
    for name in ("a", "b"):
        for i in range(2):
            (tmp_path / f"{name}_gpu_{i}.jsonl").write_text('{"i": 1}{"i": 2}\n')  # which is told on stderr
    plan = write_plan(tmp_path / "p.json", 4, 2, f"{tmp_path}/*_{{suffix}}.jsonl")
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "gpusched.commands.merge", "--plan", str(plan)]
    if gone == "closed":
        command = ["bash", "-c", f'exec "$@" {1 if stream == "stdout" else 2}>&-', "-", *command]
    with open("/dev/full", "w") as full:
        streams: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        if gone != "closed":
            streams[stream] = writer if gone == "pipe" else full
        done = subprocess.run(command, text=True, **streams)
    os.close(writer)
    assert done.returncode == 0, done
    if stream == "stdout":
        assert done.stderr.count("2 records on one line") == 4 and len(done.stderr.splitlines()) == 4, done
    else:
        assert done.stdout.count(": 4 records of 2 parts") == 2 and len(done.stdout.splitlines()) == 2, done
    assert (tmp_path / "a_merged.jsonl").exists() and (tmp_path / "b_merged.jsonl").exists()


# ---- what is there already -------------------------------------------------------------------------


def test_a_file_that_no_merge_has_made_is_kept(tmp_path: Path, capsys: Capture) -> None:
    parts = written(tmp_path)
    out = tmp_path / "all.jsonl"
    out.write_text("mine\n")
    said = merge(capsys, "-o", out, *parts)
    assert said.code == 1 and "exists, and is not as a merge has made it" in said.err and "--overwrite" in said.err
    assert out.read_text() == "mine\n" and names(tmp_path) == ["all.jsonl", *[path.name for path in parts]]
    assert merge(capsys, "-o", out, *parts, "--overwrite").code == 0
    assert merge(capsys, "-o", out, *parts[:2]).code == 0  # our own is replaced
    out.write_text(out.read_text() + "{}\n")  # and one that was edited is not
    assert merge(capsys, "-o", out, *parts).code == 1
    (tmp_path / "b_merged_metadata.json").write_text("{}")
    said = merge(capsys, "-o", tmp_path / "b.jsonl", *parts)
    assert said.code == 1 and "b_merged_metadata.json: exists, and is no merge's metadata" in said.err


def test_a_complete_output_is_not_replaced_by_an_incomplete_one(tmp_path: Path, capsys: Capture) -> None:
    parts = written(tmp_path)
    out = tmp_path / "all.jsonl"
    assert merge(capsys, "-o", out, *parts).code == 0
    whole = out.read_bytes()
    parts[1].write_text('{"id": 9}\n{"id"')
    said = merge(capsys, "-o", out, *parts)
    assert said.code == 1 and "is complete, and what these parts would make is not" in said.err
    assert "p1.jsonl, line 2: is cut" in said.err, "which part it is, and why"
    assert out.read_bytes() == whole and not (tmp_path / "all.jsonl.incomplete").exists()


@pytest.mark.parametrize("complete", [True, False])
def test_a_file_that_only_is_named_as_the_mark_of_a_merge_is_kept(
    tmp_path: Path, capsys: Capture, complete: bool
) -> None:
    parts = written(tmp_path)
    mark = tmp_path / "all.jsonl.incomplete"
    mark.write_text("my notes\n")
    if not complete:
        parts[1].write_text("{")
    said = merge(capsys, "-o", tmp_path / "all.jsonl", *parts, "--overwrite")
    assert said.code == 1 and "all.jsonl.incomplete: exists, and no merge has made it" in said.err, said
    assert mark.read_text() == "my notes\n" and not (tmp_path / "all.jsonl").exists()
    mark.unlink()
    os.mkfifo(mark)
    assert merge(capsys, "-o", tmp_path / "all.jsonl", *parts).code == 1


def test_a_pipe_that_somebody_has_put_where_metadata_lie_is_not_read(tmp_path: Path, capsys: Capture) -> None:
    parts = written(tmp_path)
    for name in ("all_merged_metadata.json", "p0_metadata.json"):
        os.mkfifo(tmp_path / name)
    said = merge(capsys, "-o", tmp_path / "all.jsonl", *parts)
    assert said.code == 1 and "all_merged_metadata.json: exists, and is no merge's metadata" in said.err
    assert merge(capsys, "-o", tmp_path / "all.jsonl", *parts, "--overwrite").code == 0


def test_outputs_of_one_stem_have_metadata_each(tmp_path: Path, capsys: Capture) -> None:
    for form in ("jsonl", "csv"):
        assert merge(capsys, "-o", tmp_path / f"x_merged.{form}", *written(tmp_path, form)).code == 0
    for form in ("jsonl", "csv"):
        assert merge(capsys, "-o", tmp_path / f"x_merged.{form}", *written(tmp_path, form, 2)).code == 0
    assert json.loads((tmp_path / "x_merged_metadata.json").read_text())["format"] == "jsonl"
    assert json.loads((tmp_path / "x_csv_merged_metadata.json").read_text())["format"] == "csv"


@pytest.mark.parametrize(
    ("words", "code", "why"),
    [
        (["-o", "all.jsonl", "p0.jsonl", "all.jsonl"], 2, "all.jsonl: is the same file as the output"),
        (["-o", "all.jsonl", "p0.jsonl", "p1.jsonl", "same.jsonl"], 2, "same.jsonl: is the same file as p0.jsonl"),
        (["-o", "all.jsonl", "folder.jsonl"], 2, "folder.jsonl: is no regular file"),
        (["-o", "folder.jsonl", "p0.jsonl"], 2, "folder.jsonl: is no regular file"),
        (["-o", "link.jsonl", "p0.jsonl"], 2, "link.jsonl: is no regular file"),
        (["-o", "no/all.jsonl", "p0.jsonl"], 3, "no/all.jsonl: No such file or directory"),
        (["-o", "all.xml", "p0.jsonl"], 2, ".xml names no format that can be merged"),
        (["-o", "all", "p0.jsonl"], 2, "its suffix . names no format"),
        (["-o", f"{'x' * 249}.jsonl", "p0.jsonl"], 3, ".jsonl: File name too long"),
        (["-o", "all.csv", "p0.jsonl"], 1, "p0.jsonl: is no .csv file as the output"),
        (["-o", "all.jsonl", "p0.jsonl", "--on-duplicate", "keep-first"], 2, "--on-duplicate needs --key"),
        (["-o", "all.jsonl", "p0.jsonl", "p7.jsonl"], 1, "p7.jsonl: there is no such file"),
        (["-o", "all.jsonl", "x*.jsonl"], 1, "x*.jsonl: there is no such file"),
        (["-o", "all.jsonl"], 2, "no part is named"),
        (["p0.jsonl"], 2, "no output is named"),
        (["--plan", "p.json", "p0.jsonl"], 2, "--plan names the parts"),
        (["--plan", "none.json"], 2, "none.json: cannot be read as a plan of gpusched shard: No such file"),
        (["--frobnicate"], 2, "unrecognized arguments"),
        (["-o", "all.jsonl", "a\x1b7\n.jsonl"], 1, r"a\x1b7\x0a.jsonl: there is no such file"),
    ],
)
def test_what_is_refused(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch, words: list[str], code: int, why: str
) -> None:
    monkeypatch.chdir(tmp_path)
    written(tmp_path)
    (tmp_path / "all.jsonl").write_text("")
    os.link("p0.jsonl", "same.jsonl")
    os.mkdir("folder.jsonl")
    os.symlink("p0.jsonl", "link.jsonl")
    (tmp_path / "p.npy").write_bytes(b"")
    before = names(tmp_path)
    said = merge(capsys, *words)
    assert said.code == code and why in said.err and len(said.err.splitlines()) <= 3, said
    assert names(tmp_path) == before and "Traceback" not in said.err


def test_a_part_that_changes_is_refused(tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    from gpusched.commands.merge.formats.jsonl import JsonLines

    parts = written(tmp_path)
    write = JsonLines.write

    def grow(self: JsonLines, out: MergeOutput) -> Any:
        joined = write(self, out)
        with open(parts[0], "a") as file:
            file.write("{}\n")
        return joined

    monkeypatch.setattr(JsonLines, "write", grow)
    said = merge(capsys, "-o", tmp_path / "all.jsonl", *parts)
    assert said.code == 1 and "p0.jsonl: has changed while it was read" in said.err
    assert not (tmp_path / "all.jsonl").exists()


def test_parts_are_removed_only_when_all_of_them_are_in_the_output(tmp_path: Path, capsys: Capture) -> None:
    parts, out = written(tmp_path), tmp_path / "all.jsonl"
    parts[2].write_text("{")
    said = merge(capsys, "-o", out, *parts, "--remove-parts")
    assert said.code == 1 and "the parts are kept" in said.err and all(path.exists() for path in parts)
    parts[2].write_text("{}\n")
    whole = b"".join(path.read_bytes() for path in parts)
    said = merge(capsys, "-o", out, *parts, "--remove-parts")
    assert said.code == 0 and not any(path.exists() for path in parts) and out.read_bytes() == whole
    parts[1].write_text("{}\n")
    said = merge(capsys, "-o", out, parts[1])
    assert said.code == 1 and "was made of parts that were removed then; it is kept" in said.err
    assert out.read_bytes() == whole and parts[1].exists()


def test_a_part_that_changes_before_its_removal_is_kept(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts, name_it = written(tmp_path), MergeOutput.commit

    def and_change(out: MergeOutput) -> None:
        name_it(out)
        parts[1].write_text("{}")
        parts[2].unlink()

    monkeypatch.setattr(MergeOutput, "commit", and_change)
    said = merge(capsys, "-o", tmp_path / "all.jsonl", *parts, "--remove-parts")
    assert said.code == 3 and "p1.jsonl has changed since it was merged; it is kept" in said.err, said
    assert "p2.jsonl is merged, and cannot be removed: No such file" in said.err
    assert "27 records of 3 parts" in said.out and [path.exists() for path in parts] == [False, True, False]


FULL = """
import errno, io, os, sys
from gpusched.commands.merge import __main__
left = int(sys.argv[1])
class FullFor(io.FileIO):
    def write(self, data):
        global left
        left -= len(data)
        if left < 0 and not sys.argv[1] == "0":
            sys.argv[1] = "0"  # there is room again, as somebody has removed something
            super().write(bytes(data)[: len(data) // 2])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().write(data)
os.fdopen = lambda fd, mode, buffering: io.BufferedRandom(FullFor(fd, "w+"), buffering)
sys.exit(__main__.main(sys.argv[2:]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("form", ["jsonl", "txt", "csv", "npy"])
def test_a_disk_that_is_full_for_a_moment_leaves_no_output(tmp_path: Path, form: str) -> None:
    parts = written(tmp_path, form)
    before, out = names(tmp_path), tmp_path / f"all.{form}"
    words = [sys.executable, "-c", FULL, "30", "-o", str(out), *map(str, parts)]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 3 and f"all.{form}: No space left" in done.stderr, done
    assert names(tmp_path) == before


@pytest.mark.parametrize("form", ["pt", "npz", "parquet"])
def test_a_full_disk_is_named_whatever_the_library_makes_of_it(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    parts = written(tmp_path, form)
    begin = MergeOutput.__enter__

    def full(self: MergeOutput) -> MergeOutput:
        self.file.close()
        self.file = os.fdopen(os.open("/dev/full", os.O_RDWR), "w+b", buffering=0)
        return begin(self)

    monkeypatch.setattr(MergeOutput, "__enter__", full)
    said = merge(capsys, "-o", tmp_path / f"all.{form}", *parts)
    assert said.code == 3 and f"all.{form}: No space left on device" in said.err, said
    assert names(tmp_path) == [path.name for path in parts]


def test_metadata_of_scripts_that_cannot_be_added_up_or_read_do_no_harm(tmp_path: Path, capsys: Capture) -> None:
    parts = written(tmp_path)
    for path, text in zip(
        parts,
        [
            '{"a":' * 900 + "1" + "}" * 900,
            '{"count": 1e308, "accuracy": 1e308, "total": 2}',
            '{"count": 1e308, "accuracy": 0.5, "total": ' + "9" * 4000 + "}",
        ],
        strict=True,
    ):
        path.with_name(f"{path.stem}_metadata.json").write_text(text)
    assert merge(capsys, "-o", tmp_path / "all.jsonl", *parts).code == 0
    told = json.loads((tmp_path / "all_merged_metadata.json").read_text())
    assert told["totals"] == {"total": 2} and [bool(part.get("metadata")) for part in told["parts"]] == [0, 1, 1]


def test_a_missing_library_is_named(tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    for form, module in [("parquet", "pyarrow"), ("pt", "torch")]:
        monkeypatch.setitem(sys.modules, module, None)
        (tmp_path / f"p.{form}").write_bytes(b"x")
        said = merge(capsys, "-o", tmp_path / f"all.{form}", tmp_path / f"p.{form}")
        assert said.code == 3 and f"a merge of .{form} needs" in said.err and f"here: {module}" in said.err
        assert f"pip install {module}\n" in said.err


@pytest.mark.slow
def test_text_formats_load_no_heavy_library(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom gpusched.commands.merge.__main__ import main\nmain(sys.argv[1:])\n"
        "print([name for name in ('torch', 'numpy', 'pyarrow', 'safetensors') if name in sys.modules])"
    )
    for form in ("jsonl", "json", "csv", "txt"):
        words = [sys.executable, "-c", code, "-o", str(tmp_path / f"all.{form}"), *map(str, written(tmp_path, form))]
        assert subprocess.run(words, capture_output=True, text=True).stdout.endswith("\n[]\n")


# ---- memory ----------------------------------------------------------------------------------------


# What the kernel says to a parent counts the memory that the parent had when it forked.
PEAK = """
import sys
from gpusched.commands.merge.__main__ import main
code = main(sys.argv[1:])
print([line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")][0])
sys.exit(code)
"""


def peak_kib(*words: object) -> int:
    """The largest resident set of one merge."""
    done = subprocess.run([sys.executable, "-c", PEAK, *map(str, words)], capture_output=True, text=True, check=True)
    return int(done.stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.parametrize("form", ["jsonl", "csv", "txt", "npy", "parquet"])
def test_memory_does_not_grow_with_the_input(tmp_path: Path, form: str) -> None:
    small, large = tmp_path / "small", tmp_path / "large"
    row = "x" * 1000
    for place, rows in ((small, 1000), (large, 15_000)):
        place.mkdir()
        for number in range(2):
            path = place / f"p{number}.{form}"
            if form == "npy":
                import numpy as np

                np.save(path, np.zeros((rows, 1000), np.uint8))
            elif form == "parquet":
                import pyarrow as pa
                import pyarrow.parquet as pq

                text = [f"{number}{i}{row}" for i in range(rows)]
                pq.write_table(pa.table({"t": text}), path, compression="none", use_dictionary=False)
            else:
                lines = [
                    json.dumps({"id": i, "t": row}) if form in ("jsonl", "json") else f"{i},{row}" for i in range(rows)
                ]
                whole = ",\n".join(lines) if form == "json" else "\n".join(lines)
                path.write_text(f"[{whole}]" if form == "json" else f"id,t\n{whole}" if form == "csv" else whole)
    before, after = (peak_kib("-o", place / f"all.{form}", *place.glob("p*")) for place in (small, large))
    assert after - before < (60_000 if form == "parquet" else 8_000), f"{before} and {after} KiB"


@pytest.mark.slow
@pytest.mark.parametrize("short", [0, 500])
def test_memory_does_not_grow_with_what_parquet_stores_once(tmp_path: Path, short: int) -> None:
    """400 MB of one long text, after some short ones, in files of a few kB."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    values = pa.array(["a", "x" * 4000])
    peaks = []
    for place, rows in ((tmp_path / "small", 1000), (tmp_path / "large", 50_000)):
        place.mkdir()
        for number in range(2):
            which = pa.array([int(row >= short) for row in range(rows)], pa.int32())
            table = pa.table({"t": pa.DictionaryArray.from_arrays(which, values)})
            pq.write_table(table, place / f"p{number}.parquet", store_schema=False)  # read, it is plain text
        peaks.append(peak_kib("-o", place / "all.parquet", *place.glob("p*")))
        assert pq.read_metadata(place / "all.parquet").num_rows == 2 * rows
    assert pq.read_schema(place / "all.parquet").field("t").type == pa.string()
    assert peaks[1] - peaks[0] < 200_000, f"{peaks} KiB"


# ---- names that are not UTF-8 ----------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", [b"o\xff", "oé".encode(), b"o\x1b"])
def test_names_of_any_bytes_in_any_locale(tmp_path: Path, name: bytes) -> None:
    """An output that is incomplete, completed, and made again in another locale."""
    utf8, plain = (os.environ | more for more in ({"PYTHONUTF8": "1"}, {"LC_ALL": "C", "PYTHONUTF8": "0"}))
    out = os.fsencode(tmp_path) + b"/" + name + b".jsonl"
    parts = [os.fsencode(tmp_path) + b"/" + name + b"_%d.jsonl" % number for number in range(3)]
    command: list[bytes | str] = [sys.executable, "-m", "gpusched.commands.merge", "-o", out]

    def made(env: dict[str, str], *words: bytes | str) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run([*command, *words], capture_output=True, env=env)

    def write(path: bytes) -> None:
        with open(path, "wb") as file:
            file.write(b"{}\n")

    for path in parts[:2]:
        write(path)
    done = made(plain, *parts, "--allow-partial")
    assert done.returncode == 0 and b"INCOMPLETE" in done.stdout, done
    with open(out + b".incomplete", "rb") as file:
        told = file.read()
    assert b"o" in told and told.isascii() == (name != "oé".encode()) and b"\x1b" not in told, told
    write(parts[2])
    for env in (utf8, plain):
        done = made(env, *parts)
        assert done.returncode == 0 and b"3 records of 3 parts" in done.stdout, done
        assert not os.path.lexists(out + b".incomplete")
        write(parts[1])
    assert made(plain, *parts[:2]).returncode == 0, "a complete one is replaced"
    assert made(utf8, *parts).returncode == 0
    assert made(plain, *parts).returncode == 0
    with open(out, "rb") as file:
        assert file.read() == b"{}\n" * 3
    assert len(names(tmp_path)) == 5


@pytest.mark.parametrize("form", FORMATS)
def test_parts_whose_names_are_not_utf_8(tmp_path: Path, capsys: Capture, form: str) -> None:
    place = tmp_path / os.fsdecode(b"d\xff")
    place.mkdir()
    for part in written(tmp_path, form):
        part.rename(place / os.fsdecode(b"\xff" + part.name.encode()))
    said = merge(capsys, "-o", place / f"all.{form}", *place.glob("*p*"))
    assert said.code == 0, said
    (place / f"all.{form}").rename(tmp_path / f"all.{form}")
    assert FORMATS[form][1](tmp_path / f"all.{form}") == list(range(27))


def test_a_plan_in_a_directory_whose_name_is_not_utf_8(tmp_path: Path, capsys: Capture) -> None:
    place = tmp_path / os.fsdecode(b"d\xff")
    place.mkdir()
    parts = [place / f"x_gpu_{number}.jsonl" for number in range(2)]
    for number, path in enumerate(parts):
        FORMATS["jsonl"][0](path, [number])
    plan = write_plan(place / "plan.json", 2, 2, f"{place}/*_{{suffix}}.jsonl")
    for _ in range(2):
        assert merge(capsys, "--plan", plan).code == 0
    assert (place / "x_merged.jsonl").read_bytes() == parts[0].read_bytes() + parts[1].read_bytes()


# ---- the command line ------------------------------------------------------------------------------


def test_the_verb_and_the_stage_have_the_options_of_the_table() -> None:
    verb = front.cli.get_command(click.Context(front.cli), "merge")
    assert verb is not None
    theirs = {name: action for action in MergeParser()._actions for name in action.option_strings}
    ours = {name: option for option in verb.params if isinstance(option, click.Option) for name in option.opts}
    flags = {name for row in options_of(MergeOptions) for name in row.flags}
    assert ours.keys() == flags and theirs.keys() == flags | {"-h", "--help"}


@pytest.mark.slow
def test_the_verb_runs_the_stage(tmp_path: Path) -> None:
    written(tmp_path)
    (tmp_path / "json.py").write_text("raise SystemExit('a file of the working directory')")
    (tmp_path / "-odd.jsonl").write_text("{}\n")
    words = ["merge", "-o", "all.jsonl", "--expect", "28", "--by=given", "--sum", "a", "--sum", "b"]
    command = [sys.executable, "-P", "-m", "gpusched"] if sys.version_info >= (3, 11) else ["gpusched"]
    if sys.version_info < (3, 11):
        (tmp_path / "json.py").unlink()
    done = subprocess.run(
        [*command, *words, "--", "-odd.jsonl", "p0.jsonl", "p1.jsonl", "p2.jsonl"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0 and done.stdout == "all.jsonl: 28 records of 4 parts\n", done
    assert (tmp_path / "all.jsonl").read_text().startswith("{}\n")


# ---- what is told ----------------------------------------------------------------------------------


def test_like_things_are_told_once_with_their_number(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "a.jsonl").write_text('{"x": NaN}\n' * 1000 + "bad\n" * 300)
    (tmp_path / "b.jsonl").write_text("")
    said = merge(capsys, "-o", tmp_path / "all.jsonl", tmp_path / "a.jsonl", tmp_path / "b.jsonl")
    assert said.code == 1 and len(said.err.splitlines()) == 8
    assert "a.jsonl, line 1: NaN or Infinity is written as null (--nan), and on 999 lines more" in said.err
    assert "a.jsonl, line 1005: is no JSON" in said.err and "a.jsonl: 295 more of them" in said.err
    assert "b.jsonl is empty: it is skipped" in said.err


def test_a_part_whose_name_is_a_number_of_5000_digits_is_refused(tmp_path: Path, capsys: Capture) -> None:
    said = merge(capsys, "-o", tmp_path / "all.jsonl", f"{'9' * 5000}.jsonl")
    assert said.code == 1 and "there is no such file" in said.err and len(said.err) < 2000
