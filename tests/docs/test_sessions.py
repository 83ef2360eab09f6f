"""The sessions that the docs show are run, on simulated GPUs, and must say what the docs say that they say.

A block is marked by a comment above it. `<!-- session: NAME -->`: the commands after `$` are run one after the other;
blocks of one name go on in the same place. `<!-- file: NAME -->`: the block is a file of the working directory.
Moments, durations, pids and UUIDs may differ; a `…` stands for any text, a line of it alone for any lines.
`<!-- picture: PATH -->`: what the sessions of this page made there, `FILE#TITLE` being one chart of a report; the
picture below has its size. `GPUSCHED_BLESS=1` writes what was said into a block that differs and copies the pictures.
"""

from __future__ import annotations

import os
import re
import struct
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.support.box import Box
from tests.support.paths import ROOT

PAGES = ("README.md", *(str(p.relative_to(ROOT)) for p in sorted((ROOT / "docs").glob("*.md"))))
MARKED = re.compile(r"<!-- (session|file): (\S+) -->\n```\w*\n(.*?)^```$", re.DOTALL | re.MULTILINE)
PICTURE = re.compile(r"<!-- picture: (\S+?)(?:#(.+?))? -->\n!\[[^]]*\]\((\S+)\)")
TIME_LIMIT_S = 90
VARYING = (
    (r"\b\d\d:\d\d:\d\d\b", "<moment>"),
    (r"\b\d+:\d\d\b", "<clock>"),
    (r"\b\d+(?:\.\d+)? s\b", "<seconds>"),
    (r"\b\d+s\b", "<age>"),
    (r"\bpid \d+", "pid <n>"),
    (r"\bGPU-[0-9a-f-]{8,}", "<uuid>"),
    (r"\b\d+\.\d{3,}", "<float>"),
    (r"[ \t]+", " "),
)


@dataclass
class Session:
    """The blocks of one name on one page."""

    page: str
    name: str
    files: dict[str, str] = field(default_factory=dict)
    blocks: list[str] = field(default_factory=list)
    pictures: int = 0  # that it has made


def sessions() -> list[Session]:
    found: dict[tuple[str, str], Session] = {}
    for page in PAGES:
        path = ROOT / page
        files: dict[str, str] = {}
        for kind, name, text in MARKED.findall(path.read_text("utf-8") if path.exists() else ""):
            if kind == "file":
                files[name] = text
            else:
                found.setdefault((page, name), Session(page, name, files)).blocks.append(text)
    return list(found.values())


def steps(block: str) -> Iterator[tuple[str, str]]:
    """Each command of a block with what it says; a command goes on where a line ends in a backslash."""
    for text in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        end = re.compile(r"(?<!\\)\n").search(text)
        assert end is not None
        yield text[: end.start()], text[end.end() :]


def plain(text: str) -> str:
    for pattern, word in VARYING:
        text = re.sub(pattern, word, text)
    return text.strip()


def matches(told: str, said: str) -> bool:
    """Whether the output that the docs tell is what was said."""
    parts = []
    for line in told.strip("\n").split("\n"):
        if line.strip() == "…":
            parts.append(r"(?:.*\n)*?")
        else:
            parts.append(".*?".join(re.escape(plain(part)) for part in line.split("…")) + r"\s*\n")
    spoken = "".join(f"{plain(line)}\n" for line in said.rstrip("\n").split("\n"))
    return re.fullmatch("".join(parts), spoken) is not None


def say(box: Box, command: str, status: int) -> tuple[str, int]:
    """What a command says, started after one that ended with `status`. What it leaves behind is not waited for."""
    path = box.root / "spoken"
    with open(path, "wb") as out:
        code = subprocess.run(
            ["bash", "-c", f"(exit {status})\n{command}"],
            cwd=box.work,
            env=box.environment,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            timeout=TIME_LIMIT_S,
            start_new_session=True,
        ).returncode
    return path.read_text("utf-8", "replace"), code


def picture(path: Path, title: str) -> bytes:
    """A picture that a session has made: a file, or the chart of a page with this title; nothing if it made none."""
    if not title or not path.exists():
        return path.read_bytes() if path.exists() else b""
    found = re.search(f"<b>{re.escape(title)}</b>.*?(<svg.*?</svg>)", path.read_text("utf-8"), re.DOTALL)
    svg = found[1] if found else ""
    return svg.replace(">", '><rect width="100%" height="100%" fill="#fff"/>', 1).encode()


def shape(data: bytes) -> object:
    """The width and height of a PNG, or the frame of an SVG."""
    if data.startswith(b"\x89PNG"):
        return struct.unpack(">II", data[16:24])
    frame = re.search(rb'viewBox="([^"]*)"', data)
    assert frame is not None
    return frame[1]


def check_pictures(session: Session, box: Box) -> None:
    """Compare the pictures of a page with those that its session has made."""
    page = ROOT / session.page
    for source, title, name in PICTURE.findall(page.read_text("utf-8")):
        data, shown = picture(box.work / source, title), page.parent / name
        if not data:
            continue  # of another session
        if os.environ.get("GPUSCHED_BLESS"):
            shown.parent.mkdir(exist_ok=True)
            shown.write_bytes(data)
        assert shape(shown.read_bytes()) == shape(data), name
        assert len(shown.read_bytes()) < 50_000, "pictures in the docs are small"
        session.pictures += 1


@pytest.mark.slow
@pytest.mark.parametrize("session", sessions(), ids=lambda s: f"{s.page}:{s.name}")
def test_a_session_in_the_docs_is_true(session: Session, tmp_path: Path) -> None:
    defaults = {"GPUSCHED_MAX_CHECKS": "", "GPUSCHED_POLL_INTERVAL": "", "GPUSCHED_GRACE": "", "USER": "ada"}
    wrong: list[str] = []
    with Box(tmp_path, gpus="", environment=defaults) as box:
        for name, text in session.files.items():
            (box.work / name).write_text(text, "utf-8")
        (box.work / "examples").symlink_to(ROOT / "examples")
        status = 0
        for block in session.blocks:
            spoken = ""
            before = len(wrong)
            for command, told in steps(block):
                said, status = say(box, command, status)
                spoken += f"$ {command}\n{said}"
                if not matches(told, said):
                    wrong.append(f"$ {command}\n--- the docs say\n{told}\n--- it said\n{said}")
            if len(wrong) > before and os.environ.get("GPUSCHED_BLESS"):
                path = ROOT / session.page
                path.write_text(path.read_text("utf-8").replace(block, spoken), "utf-8")
        check_pictures(session, box)
    assert not wrong or os.environ.get("GPUSCHED_BLESS"), "\n\n".join(wrong)
    text = (ROOT / session.page).read_text("utf-8")
    assert session.name != "pictures" or session.pictures == text.count("<!-- picture: ") > 0


def test_the_comparison_of_sessions_sees_a_difference() -> None:
    assert matches("01:02:03 job 1 ended, after 1.2 s\n", "23:59:59 job 1 ended, after 11 s\n")
    assert matches("a\n…\nz\n", "a\nb\nc\nz\n")
    assert matches("pid … has it\n", "pid 12 has it\n")
    assert not matches("01:02:03 job 1 ended\n", "01:02:03 job 2 ended\n")
    assert not matches("a\nz\n", "a\nb\nz\n")
    assert matches("\n", "")
    assert list(steps("$ a \\\n  b\nsaid\n$ c\n")) == [("a \\\n  b", "said\n"), ("c", "")]
