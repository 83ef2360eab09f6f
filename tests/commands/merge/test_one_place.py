"""A format is one file and one row, an option is one field, and one merge goes straight through its steps."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import FrameType

import pytest
from gpusched.commands.merge import formats
from gpusched.commands.merge import merge as steps

from gpusched.shards.merge_options import MERGE_FORMATS, FormatRow
from gpusched.shards.outputs import check_formats
from tests.support.merging import merge, write_plan
from tests.support.paths import ROOT

Capture = pytest.CaptureFixture[str]

WORDS = '''
"""Words between blanks."""

from pathlib import Path

from gpusched.commands.merge.join.records import RecordFormat


class Words(RecordFormat):
    """The words of .words parts."""

    separator = b" "

    def records(self, part, report):
        for number, word in enumerate(Path(part.path).read_bytes().split(), 1):
            yield number, word, word, 1
'''


def test_a_format_is_one_file_and_one_row_of_the_table(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "words.py").write_text(WORDS)
    monkeypatch.setattr(formats, "__path__", [*formats.__path__, str(tmp_path)])
    monkeypatch.setitem(MERGE_FORMATS, "words", FormatRow("words", "Words", has_keys=True))
    monkeypatch.delitem(sys.modules, f"{formats.__name__}.words", raising=False)
    check_formats([f"{tmp_path}/*_{{suffix}}.words"], "all.words")
    (tmp_path / "x_gpu_0.words").write_text("a c ")
    (tmp_path / "x_gpu_1.words").write_text("b\nd\n")
    plan = write_plan(tmp_path / "p.json", 4, 2, f"{tmp_path}/*_{{suffix}}.words", strategy="strided")
    said = merge(capsys, "--plan", plan)
    assert said.code == 0 and "4 records of 2 parts" in said.out, said
    assert (tmp_path / "x_merged.words").read_text() == "a b c d"
    (tmp_path / "x_gpu_1.words").write_text("b a d")
    said = merge(capsys, "-o", tmp_path / "y.words", *tmp_path.glob("x_gpu_*"), "--key", "word")
    assert said.code == 1 and "x_gpu_1.words, line 2: a is there before" in said.err, said


# Puts one more field into the table of options before anything reads it, and says where it is found.
ONE_MORE = """
import importlib.util, sys
from pathlib import Path
name = "gpusched.shards.merge_options"
spec = importlib.util.find_spec(name)
text = Path(spec.origin).read_text()
assert text.count("    plan: ") == 1
field = '    twice: bool = option(False, "Merge everything twice.", shard="--merge-twice")\\n    plan: '
sys.modules[name] = options = importlib.util.module_from_spec(spec)
exec(compile(text.replace("    plan: ", field), spec.origin, "exec"), options.__dict__)

import click
from gpusched.cli.main import cli
from gpusched.commands.merge.__main__ import MergeParser
from gpusched.shards.jobs import make_jobs
from gpusched.shards.plan import SplitOptions, from_document, to_document
from gpusched.shards.request import ShardRequest
from gpusched.shards.sizing import make_plan
from dataclasses import replace
from tests.docs.test_docs import BLOCKS

def has(where, text, *words):
    print(where, all(word in text for word in words))

def help_of(verb):
    return cli.get_command(click.Context(cli), verb).get_help(click.Context(cli.get_command(click.Context(cli), verb)))

chosen = options.MergeOptions(twice=True)
has("stage", MergeParser().format_help(), "--twice", "Merge everything twice.")
print("parsed", MergeParser().parse_args(["--twice"]).twice)
has("verb", help_of("merge"), "--twice", "Merge everything twice.")
has("shard", help_of("shard"), "--merge-twice", "Merge everything twice")
has("command", ShardRequest(("x",), 1, patterns=("p",), merge=chosen).words, "--merge-twice")
plan = make_plan(4, SplitOptions(), 2, 2)
stored = from_document(to_document(replace(plan, merge=chosen))).merge
print("record", stored == chosen, options.with_recorded(options.MergeOptions(), stored).twice)
jobs = [make_jobs(replace(plan, merge=one), "x {shard} {num_shards}", "", "merge", options={"gpus": 1}).specs[-1]
        for one in (options.MergeOptions(), chosen)]
print("job", jobs[0].attributes.env != jobs[1].attributes.env)
has("docs", "".join(make() for block in BLOCKS.values() for make in block.values()), "--twice", "--merge-twice")
"""


def test_an_option_is_described_in_one_place() -> None:
    done = subprocess.run([sys.executable, "-c", ONE_MORE], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    answers = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    assert len(answers) == 8 and all("False" not in answer for answer in answers.values()), answers


@pytest.mark.parametrize("plan", [False, True])
def test_a_merge_goes_through_its_module_once(tmp_path: Path, capsys: Capture, plan: bool) -> None:
    for number in range(2):
        (tmp_path / f"x_gpu_{number}.txt").write_text(f"{number}\n")
    words = ["-o", tmp_path / "all.txt", *tmp_path.glob("x_gpu_*")]
    if plan:
        words = ["--plan", write_plan(tmp_path / "p.json", 2, 2, f"{tmp_path}/*_{{suffix}}.txt")]
    entered = []

    def count(frame: FrameType, event: str, _: object) -> None:
        caller = frame.f_back
        is_entry = caller is None or caller.f_code.co_filename != steps.__file__
        if event == "call" and frame.f_code.co_filename == steps.__file__ and is_entry:
            entered.append(frame.f_code.co_name)

    sys.setprofile(count)
    try:
        said = merge(capsys, *words)
    finally:
        sys.setprofile(None)
    assert said.code == 0 and 1 <= len(entered) <= 3, entered
