"""Wrong inputs as people type them, one a row: the exit code, and what the message must say."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from gpusched.cli import main as front
from tests.support.command_line import Capture
from tests.support.sample import Sample9

FILES = {
    "list.txt": "true\n",
    "empty.txt": "",
    "comments.txt": "# nothing\n\n",
    "open.txt": 'echo "a\n',
    "pins.txt": "CUDA_VISIBLE_DEVICES=1 python train.py\n",
    "cd.txt": "cd /data\npython train.py\n",
    "table.txt": "0.1,3\n0.2,4\n",
    "train.py": "import os\nprint(os.name)\n",
    "job.sbatch": "#!/bin/bash\n#SBATCH --gres=gpu:1\nmodule load cuda\nsrun python train.py\n",
    "key.txt": "[gpu=2] true\n",
    "size.txt": "[mem=18X] true\n",
    "comma.txt": "[gpus=2,mem=1G] true\n",
    "bracket.txt": "[gpus=2 true\n",
    "after.txt": "[after=prep] true\n",
    "circle.txt": "[name=a after=b] true\n[name=b after=a] false\n",
    "name.txt": "[name=a] true\n[name=a] false\n",
    "wide.txt": "[gpus=9] true\n",
    "huge.txt": "[mem=900G] true\n",
    "blank.txt": "python train.py \\ \n  --lr 1\n",
    "option.txt": "python train.py\n--lr 1\n",
    "dash.txt": "python train.py \u2014lr 1\n",
    "broken.yaml": "jobs: [\n",
    "nojobs.yaml": "defaults: {gpus: 1}\n",
    "key.yaml": "jobs:\n- {comand: a}\n",
    "range.yaml": 'jobs:\n- {command: "a {x}", grid: {x: 0-9}}\n',
    "zip.yaml": 'jobs:\n- {command: "a {x} {y}", zip: {x: [1, 2], y: [1]}}\n',
    "header.csv": "x,y\n",
    "ragged.csv": "x\n1,2\n",
    "models.csv": "name,size\na,1\n",
    "items.txt": "a\nb\n",
}
SHARD = "shard --total 9 {} -- true {{start}} {{count}}"
WRONG = [
    # ---- the file ----
    ("run", "Missing argument 'FILE' (or -c COMMAND)"),
    ("run nosuch.txt", "nosuch.txt: cannot be read: No such file or directory"),
    ("run lst.txt", "No such file or directory\n  did you mean list.txt? one command: gpusched run -- COMMAND"),
    ("run folder", "folder: cannot be read: Is a directory"),
    ("run empty.txt", "empty.txt: holds no command"),
    ("run comments.txt", "comments.txt: holds no command"),
    ("run utf16.txt", "utf16.txt: this is UTF-16, not UTF-8; save it as UTF-8, by: iconv -f UTF-16 -t UTF-8"),
    ("run utf16.yaml", "utf16.yaml: this is UTF-16, not UTF-8; save it as UTF-8, by: iconv -f UTF-16 -t UTF-8"),
    ("run train.py", "this is a python script, not a file of commands\n  write a file with lines like: python FILE"),
    ("run open.txt", "open.txt:1:6: error: this quote is not closed on its line"),
    ("run pins.txt", "it sets or unsets CUDA_VISIBLE_DEVICES itself"),
    ("run cd.txt", "each line runs in a shell of its own, so what this line sets is lost"),
    ("run table.txt", "table.txt: 2 lines cannot be right"),
    ("run job.sbatch", "#gpusched: gpus=1 mem=18G time=2:00:00 (or --gpus --mem --time)"),
    ("run job.sbatch", "leave srun and its options out"),
    ("run key.txt", "unknown attribute 'gpu'; did you mean gpus?"),
    ("run size.txt", "mem is '18X', but must be MiB (500) or a number with a unit"),
    ("run comma.txt", "gpus is '2,mem=1G', but must be a whole number"),
    ("run bracket.txt", "this [ opens attributes and is never closed"),
    ("run after.txt", "no job has the name or the tag prep"),
    ("run circle.txt", "these jobs wait for each other: a (line 1) -> b (line 2) -> a (line 1)"),
    ("run name.txt", "line 1 has the name a already"),
    ("run wide.txt", "line 1: wants 9 GPUs, and 2 are allowed here"),
    ("run huge.txt", "line 1: wants 921600 MiB on a GPU, and a GPU here can give"),
    ("run blank.txt", "a space follows the backslash"),
    ("run option.txt", "the line begins with an option, not with a program"),
    ("run dash.txt", "an option begins with U+2014 EM DASH"),
    ("run broken.yaml", "this is not YAML"),
    ("run nojobs.yaml", "this file has no jobs:"),
    (
        "run key.yaml",
        "key.yaml: a line cannot be right\nkey.yaml:2:4: error: unknown key 'comand'; did you mean command?",
    ),
    ("run range.yaml", "0-9 may be a range or a text: write 0..9, or put the text in quotes"),
    ("run zip.yaml", "the lists of zip differ in length: x 2, y 1"),
    ("check", "Missing argument 'FILE' (or -c COMMAND)"),
    # ---- a command with parameters ----
    ("run -c ''", "-c: the command is empty"),
    ("run -c true -p", "-p: the value is missing: NAME=VALUES\n  Put values for {NAME}"),
    ("run -c true -p x", "-p x: a parameter is NAME=VALUE,VALUE or NAME=FIRST..LAST"),
    ("run -c true -p x=", "x has no values"),
    ("run -c 'true {x}' -p x=0-9", "write -p x=0..9, or -p 'x=\"0-9\"' for the text"),
    ("run -c 'true {x}' -p x=0..", "0.. is half a range: write -p x=FIRST..LAST, or -p 'x=\"0..\"' for the text"),
    ("run -c 'true {x}' -p x=1,..4", "..4 is half a range"),
    ("run -c 'true {x}' -p 'x=[1,2'", "[ is not closed in the values of x"),
    ("run -c 'true {x}' -p y=1", "no parameter fills {x}"),
    ("run -c 'true {x}' -p x=1 -p y=1", "the command does not use {y}"),
    ("run -c 'true {x}' -p x=1 -p x=2", "the parameter x is set twice"),
    ("run -c true --each nosuch.csv", "cannot be read: No such file or directory\n  it is a CSV file whose first line"),
    ("run -c 'true {x}' --each header.csv", "it has no rows below a line that names the columns"),
    ("run -c 'true {x}' --each ragged.csv", "line 2 has 2 fields, and the header has 1"),
    ("run list.txt -p x=1", "-p goes with a command"),
    # ---- one command ----
    ("run echo a", "unexpected extra argument (a) (did you mean gpusched run -- echo a?)"),
    ("run --gpus 1 sh x.sh --seed 1", "'--seed' (did you mean gpusched run --gpus 1 -- sh x.sh --seed 1?)\n  see"),
    ("run sh -c true", "Either FILE (sh) or -c COMMAND, not both (did you mean gpusched run -- sh -c …?)\n"),
    ("run list.txt other.txt", "unexpected extra argument (other.txt)\n"),
    (
        "submit lst.txt",
        "lst.txt: there is no such file, and no such program\n  did you mean list.txt? as one job: submit",
    ),
    ("submit ./lst.txt", "  did you mean ./list.txt? as one job: submit -- ./lst.txt"),
    (
        "submit list.txt --mem 1G",
        "list.txt: is a file, and no program\n  options stand before FILE; as one job: submit",
    ),
    (
        "submit no/such.txt a",
        "no/such.txt: there is no such file, and no such program\n  as one job: submit -- no/such.txt a",
    ),
    ("submit --gpus 4-7 true", "'4-7' is not a whole number, at least 0\n  --gpus is their number; these alone"),
    ("submit --array 0-9 -- true", "No such option '--array': here it is -c 'COMMAND {n}' -p n=0..9"),
    ("submit --gres gpu:1 true", "No such option '--gres': here it is --gpus N"),
    ("submit -w /tmp -- pwd", "No such option '-w': here it is --cwd DIR"),
    ("status --group x", "No such option '--group'\n  see"),
    # ---- options ----
    ("run list.txt --gpus", "--gpus: the value is missing: N\n  Give each job N GPUs"),
    (
        "run list.txt --gpus 4-7",
        "--gpus: is a number of GPUs for each job, not '4-7'\n  these GPUs alone: --gpu-list 4-7",
    ),
    ("run list.txt --gpus 0", "jobs without a GPU: --gpus-per-job 0; GPU 0 alone: --gpu-list 0"),
    ("run list.txt --gpus 9", "2 GPUs can never give 9 to one job"),
    ("run list.txt --gpu-list", "--gpu-list: the value is missing: LIST"),
    ("run list.txt --gpu-list 9", "--gpu-list: there is no GPU 9 here"),
    ("run list.txt --gpu-list x", "gpu_list is 'x', but must be a list such as 0,1,4-7"),
    ("run list.txt --gpu-list 0,0", "--gpu-list: named more than once: 0"),
    ("run list.txt --gpu-list 3-1", "the range 3-1 runs backwards"),
    ("run list.txt --max-gpus 0", "max_gpus is '0', but must be a whole number, at least 1"),
    ("run list.txt --max-gpus 1 --gpus 2", "a job needs 2 GPUs"),
    ("run list.txt --max-checks 0", "1 takes a GPU that is free at the first look"),
    ("run list.txt --gpu-mem-threshold 0", "with 0 none ever would be"),
    ("run list.txt --time", "--time: the value is missing: TIME"),
    ("run list.txt --time 1:30", "--time-limit (--time): time_limit is '1:30', but must be seconds (90 or 90s)"),
    ("run list.txt --time 0", "must be more than 0"),
    ("run list.txt --mem 18X", "--mem: mem is '18X', but must be MiB"),
    ("run list.txt --mem 900G", "wants 921600 MiB on a GPU"),
    ("run list.txt --retries -1", "retries is '-1', but must be a whole number, at least 0"),
    ("run list.txt --free-when never", "'never' is not one of 'auto', 'memory', 'idle'"),
    ("run list.txt --simulate x", "no model X; there are A100"),
    ("run list.txt --setup nosuch.sh", "nosuch.sh: cannot be read"),
    ("run list.txt --shell nosuch", "no shell 'nosuch' on PATH"),
    ("run list.txt --log-dir list.txt", "cannot make the queue directory"),
    ("run list.txt --snapshot", "--snapshot copies a git work tree with a commit, and here is none"),
    ("run list.txt --gpu 1", "No such option '--gpu'"),
    ("run list.txt --dry-run=yes", "'--dry-run' does not take a value\n  see 'gpusched run --help'"),
    ("run list.txt --tag-max-gpus x", "must be TAG=N, comma-separated"),
    ("run list.txt -q", "the name of a queue is missing\n  -q names a queue; quiet is --quiet"),
    ("run -q list.txt", "list.txt is a file, and no queue"),
    ("logs 1 -n", "'-n' requires an argument\n  see 'gpusched logs --help'"),
    ("logs 1 --json -f", "--json prints no lines of the log: leave out -f and -n"),
    ("config max_gpus", "unexpected extra argument (max_gpus)"),
    ("devices --gpus 2", "No such option '--gpus'"),
    # ---- shards and models ----
    ("shard", "the command is missing"),
    ("shard -- true", "either --total N or --items FILE"),
    ("shard --total 9 true {start}", "unexpected argument 'true'; put the command behind --"),
    ("shard --total 9 -- true {start}", "{start} does not say both where a shard's items begin and how many they are"),
    ("shard --items nosuch.txt -- true {items_file}", "nosuch.txt: there is no such file"),
    ("shard --items 'none*.txt' -- true {items_file}", "no file matches this"),
    (SHARD.format("--total -1"), "--total -1: must be a whole number, at least 0"),
    (SHARD.format("--items items.txt"), "either --total N or --items FILE"),
    (SHARD.format("--num-shards 3 --shard-size 2"), "--num-shards and --shard-size exclude each other"),
    (SHARD.format("--merge 'out/*.xyz'"), "its suffix names no format that can be merged"),
    ("esd", "no models are named\n  use --model-list atlas.csv or --single-model gpt2"),
    ("esd --model-list models.csv --single-model x", "a list and a single model are named"),
    ("esd --model-list nosuch.csv", "nosuch.csv: cannot be read"),
    ("esd --model-list models.csv", "there is no column full_name or model_id; the columns are: name, size"),
    ("esd --single-model x --layers (", "--layers (: must be a regular expression"),
    ("esd --single-model x --bins many", "'many' is not a valid integer"),
]
WRONG_JOBS = [
    ("explain x", "there is no job 'x'"),
    ("explain 1-3", "1-3 names 3 jobs, but this takes a single one"),
    ("explain 99", "it has jobs 1 to 9"),
    ("logs 5", "job 5 is queued and has written nothing yet"),
    ("logs 2 --attempt 7", "job 2 has no attempt 7: it has had 2"),
    ("cancel", "no job is named\n  ids such as 3 or 3-7, or --all"),
    ("cancel --all 3", "--all and jobs by id do not go together"),
    ("cancel 3 -q nosuch", "there is no queue 'nosuch'\n  known here: commands"),
    ("requeue", "ids such as 3 or 3-7, or --failed"),
    ("hold", "ids such as 3 or 3-7, or --all"),
    ("release 1-x", "there is no job '1-x'"),
    ("stop nosuch", "there is no queue 'nosuch'"),
    ("stop commands -q commands", "Either QUEUE (commands) or -q commands, not both"),
]


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plain_home: None) -> None:
    """A directory with these files, and two simulated GPUs."""
    monkeypatch.setenv("GPUSCHED_SIMULATE", "2")
    for name, text in FILES.items():
        Path(name).write_text(text, "utf-8")
    for name in ("utf16.txt", "utf16.yaml"):
        Path(name).write_text("true\n", "utf-16")
    Path("folder").mkdir()


def refusal(words: str, capsys: Capture) -> str:
    """Return what a command line that is refused prints, beside what some options mean here."""
    assert front.run(shlex.split(words)) == 2
    lines = capsys.readouterr().err.splitlines(keepends=True)
    return "".join(line for line in lines if not line.startswith(("gpusched: --", "gpusched: queue ")))


@pytest.mark.parametrize(("words", "says"), WRONG, ids=lambda value: value)
def test_a_wrong_input_is_refused_and_changes_nothing(words: str, says: str, files: None, capsys: Capture) -> None:
    said = refusal(words, capsys)
    assert said.startswith("gpusched: error: ") and says in said
    assert not Path("gpusched-runs").exists()


@pytest.mark.parametrize(("words", "says"), WRONG_JOBS, ids=lambda value: value)
def test_a_wrong_job_or_queue_is_refused(words: str, says: str, sample: Sample9, capsys: Capture) -> None:
    before = sample.store.data_version()
    said = refusal(words, capsys)
    assert said.startswith("gpusched: error: ") and says in said
    assert sample.store.data_version() == before


def test_there_are_many_of_them() -> None:
    assert len(WRONG) + len(WRONG_JOBS) >= 100
    assert len({words for words, _ in WRONG}) >= len(WRONG) - 1
