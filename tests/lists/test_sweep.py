"""Job files in YAML, sweeps, and commands with parameters: which jobs they make, and what is wrong with them."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpusched.common.errors import GpuschedError
from gpusched.config.settings import Settings
from gpusched.core.model import MIB, Attributes, Dependency, DependencyKind
from gpusched.lists.attributes import render
from gpusched.lists.findings import Finding, render_findings
from gpusched.lists.joblist import JobFile
from gpusched.lists.maker import from_command
from gpusched.lists.parameters import MAX_JOBS, parameter, span, table
from gpusched.lists.submit import SubmitOptions, Sweep, parse_sweep, read
from gpusched.lists.template import Template
from gpusched.lists.yaml_jobs import parse

GIB = 1024 * MIB
TABLES = {"models.csv": b"model_id,rev,note\nmeta/llama 3,main,x\nopt,v1,y\n", "bad.csv": b"a,b\n1\n"}


def load(text: str, tables: Mapping[str, bytes] = TABLES, **options: bool) -> JobFile:
    """A job file from text; the tables that it names are these."""

    def read_table(path: str) -> bytes:
        if path not in tables:
            raise FileNotFoundError(2, "No such file or directory")
        return tables[path]

    return parse(text.encode("utf-8", "surrogateescape"), read_table, **options)


def good(text: str) -> JobFile:
    jobs = load(text)
    assert not jobs.findings, render_findings(jobs.findings)
    return jobs


def commands(jobs: JobFile) -> list[str]:
    return [spec.command.decode() for spec in jobs.specs]


def sweep(more: str, command: str = "run {a} {b}") -> list[str]:
    """The commands of one sweep, in which nothing is found."""
    return commands(good(f"jobs:\n- command: {command}\n" + "".join(f"  {line}\n" for line in more.splitlines())))


def only(text: str) -> Finding:
    jobs = load(text)
    assert len(jobs.findings) == 1, render_findings(jobs.findings)
    return jobs.findings[0]


# ---- job files -------------------------------------------------------------------------------------


def test_jobs_are_commands_or_maps() -> None:
    jobs = good(
        "# the list for tonight\n"
        "jobs:\n"
        "  - python a.py 010\n"
        "  - '[gpus=2 name=b] python b.py'\n"
        "  - command: python c.py\n"
        "    name: c\n"
        "    gpus: 0\n"
        "    time: 1h30m\n"
        "    retries: 2\n"
        "    prio: -3\n"
        "    after: [b, 12]\n"
        "    after-failed: d\n"
        "    tag: [x, y]\n"
        "    cwd: runs/c c\n"
        "    env: {A: no, B: 010, C: ''}\n"
        "  - run: |\n"
        "      cd runs\n"
        "      python d.py \\\n"
        "        --x\n"
        "    name: d\n"
        "    mem: 18G\n"
        "    gpu-model: A100\n"
    )
    assert [(spec.line, spec.text) for spec in jobs.specs] == [
        (3, b"python a.py 010"),
        (4, b"python b.py"),
        (5, b"python c.py"),
        (16, b"cd runs\npython d.py \\\n  --x"),
    ]
    assert [spec.attributes for spec in jobs.specs[:2]] == [Attributes(), Attributes(gpus=2, name="b")]
    assert jobs.specs[2].attributes == Attributes(
        gpus=0,
        name="c",
        time_limit_s=5400.0,
        retries=2,
        prio=-3,
        tags=("x", "y"),
        cwd=b"runs/c c",
        env=((b"A", b"no"), (b"B", b"010"), (b"C", b"")),
        after=(Dependency(DependencyKind.SUCCEEDED, ("b", "12")), Dependency(DependencyKind.FAILED, ("d",))),
    )
    assert jobs.specs[3].attributes == Attributes(name="d", mem_bytes=18 * GIB, gpu_model="A100")
    assert jobs.complete


def test_defaults_hold_for_all_and_are_taken_back_by_nothing() -> None:
    jobs = good(
        "jobs:\n"
        "- a\n"
        "- {command: b, mem: 9G, env: {B: 3}}\n"
        "- {command: c, mem: , tag: ~, env: {A: , B: }}\n"
        "- '[mem= tag=z env.A=5] d'\n"
        "defaults: {mem: 18G, tag: x, env: {A: 1, B: 2}}\n"
    )
    assert [render(spec.attributes).decode() for spec in jobs.specs] == [
        "[mem=18G tag=x env.A=1 env.B=2]",
        "[mem=9G tag=x env.A=1 env.B=3]",
        "",
        "[tag=z env.A=5 env.B=2]",
    ]


def test_anchors_and_quotes_are_yamls() -> None:
    jobs = good('jobs:\n- &x "a  \\x62"\n- {command: *x, cwd: here}\n- command: >\n    c\n    d\n')
    assert commands(jobs) == ["a  b", "a  b", "c d"]
    assert commands(good("\ufeffjobs:\r\n- a\r\n- b 둘\r\n")) == ["a", "b 둘"]


def test_an_empty_file_has_no_jobs() -> None:
    for text in ("", "# nothing\n", "jobs: []\n", "---\n"):
        assert not load(text).specs
        assert not load(text).findings


def test_the_same_command_twice_is_told() -> None:
    jobs = load("jobs:\n- a\n- a\n- {command: a, cwd: b}\n")
    assert [spec.occurrence for spec in jobs.specs] == [1, 2, 1]
    assert [f.message for f in jobs.findings] == ["line 3 repeats line 2"]


# ---- sweeps ----------------------------------------------------------------------------------------


def test_a_grid_is_a_product_whose_last_parameter_changes_fastest() -> None:
    assert sweep("grid: {a: [1e-3, 0.10], b: 0..2}") == [f"run {a} {b}" for a in ("1e-3", "0.10") for b in range(3)]


def test_values_stay_text() -> None:
    assert sweep("grid: {a: [010, no, 1e3, 1_000, '', null, 0x10, 1:30], b: x}") == [
        f"run {value} x" for value in ("010", "no", "1e3", "1_000", "''", "null", "0x10", "1:30")
    ]


def test_a_zip_goes_side_by_side() -> None:
    assert sweep("zip: {a: [1, 2], b: [x, y]}") == ["run 1 x", "run 2 y"]


def test_a_table_makes_a_job_of_each_row() -> None:
    made = sweep("csv: models.csv", "esd {model_id} --rev {rev}")
    assert made == ["esd 'meta/llama 3' --rev main", "esd opt --rev v1"]


def test_all_together_with_exclusions_and_repetitions() -> None:
    made = sweep(
        "csv: models.csv\nzip: {a: [1, 2], b: [x, y]}\ngrid: {c: [p, q]}\nrepeat: 2\n"
        "exclude:\n- {rev: v1}\n- {a: 1, c: [p, q]}\n- {c: q, repeat: 2}",
        "run {rev} {a} {b} {c} {repeat}",
    )
    assert made == ["run main 2 y p 1", "run main 2 y p 2", "run main 2 y q 1"]


def test_repetitions_without_a_placeholder_are_occurrences() -> None:
    jobs = good("jobs:\n- {command: a, repeat: 3}\n")
    assert [spec.occurrence for spec in jobs.specs] == [1, 2, 3]


def test_placeholders_stand_in_attributes_too_and_are_not_quoted_there() -> None:
    jobs = good(
        "defaults: {cwd: 'runs/{a}'}\n"
        "jobs:\n"
        "- command: run {a}\n"
        "  grid: {a: ['x y', z]}\n"
        "  zip: {n: [one, two]}\n"
        "  name: job-{n}\n"
        "  tag: ['t{n}', all]\n"
        "  after: ['prep-{n}']\n"
        "  env: {A: 'v {a}', N: '{N}'}\n"
        "  exclude: [{a: z, n: one}, {a: 'x y', n: two}]\n"
    )
    assert [(spec.command, render(spec.attributes)) for spec in jobs.specs] == [
        (b"run 'x y'", b"[name=job-one tag=tone,all after=prep-one cwd='runs/x y' env.A='v x y' env.N='{N}']"),
        (b"run z", b"[name=job-two tag=ttwo,all after=prep-two cwd=runs/z env.A='v z' env.N='{N}']"),
    ]


def test_only_declared_names_are_replaced() -> None:
    command = "'x {a} {} ${a} ${X} {a,b} {1..3} {c} {{a}} | awk ''{print}'' #{a}'"
    assert sweep("grid: {a: [5]}", command) == ["x 5 {} ${a} ${X} {a,b} {1..3} {c} {5} | awk '{print}' #5"]


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("0..4", ["0", "1", "2", "3", "4"]),
        ("4..0..2", ["4", "2", "0"]),
        ("-1..1", ["-1", "0", "1"]),
        ("0..1..0.25", ["0.00", "0.25", "0.50", "0.75", "1.00"]),
        ("0.1..0.3..0.1", ["0.1", "0.2", "0.3"]),
        ("08..10", ["08", "09", "10"]),
        ("1..2..5", ["1"]),
        ("a..b", None),
        ("1e-3", None),
        ("1...3", None),
    ],
)
def test_ranges(text: str, values: list[str] | None) -> None:
    assert span(text) == values


def test_a_range_without_end_is_refused() -> None:
    with pytest.raises(ValueError, match="more than"):
        span(f"0..{MAX_JOBS}")
    with pytest.raises(ValueError, match="goes nowhere"):
        span("0..1..0")


@pytest.mark.parametrize(
    ("data", "rows"),
    [
        (b"a,b\n1,2\n", {("a", "b"): [("1", "2")]}),
        (b"\xef\xbb\xbfa;b\r\n1;2\r\n\r\n", {("a", "b"): [("1", "2")]}),
        (b"a\tb\n1\t2,3\n", {("a", "b"): [("1", "2,3")]}),
        (b',a , \n0,"x, ""y""\nz",4\n', {("a",): [('x, "y"\nz',)]}),
        (b"a\n\xff\n", {("a",): [("\udcff",)]}),
    ],
)
def test_tables(data: bytes, rows: dict[tuple[str, ...], list[tuple[str, ...]]]) -> None:
    axis = table(data, [])
    assert {axis.names: list(axis.rows)} == rows


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "no rows"),
        (b"a,b\n", "no rows"),
        (b"a,b\n1,2\n\n3\n", "line 4 has 1 field, and the header has 2"),
        (b'a\n"x\n', "line 2 is no CSV: unexpected end"),
    ],
)
def test_what_is_no_table(data: bytes, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        table(data, [])


def test_what_a_spreadsheet_adds_is_no_job(tmp_path: Path) -> None:
    (tmp_path / "p.csv").write_bytes(b"sep=;\r\nid;p\r\n0;a\r\nid;p\r\n;\r\n")
    swept = parse_sweep(Sweep("echo {id} {p}", each=f"{tmp_path}/p.csv"), SubmitOptions(Settings(), b"/"))
    assert commands(swept) == ["echo 0 a"]
    assert [f.message.partition(": ")[2] for f in swept.findings] == [
        "line 4 repeats the names of the columns and is left out"
    ]
    job_file = "jobs:\n- command: echo {id} {p}\n  csv: p.csv\n"
    found = parse(job_file.encode(), lambda path: (tmp_path / path).read_bytes())
    assert commands(found) == ["echo 0 a"]
    assert [(f.line, f.severity, f.code) for f in found.findings] == [(3, "warning", "sweep")]


# ---- what is wrong ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "line", "column", "code", "says"),
    [
        ("jobs:\n- {command: a, gpsu: 2}\n", 2, 16, "key", "unknown key 'gpsu'; did you mean gpus?"),
        ("jobs:\n- {comand: a, command: b}\n", 2, 4, "key", "did you mean command?"),
        ("jobs:\n- {command: a, gird: {x: 1}}\n", 2, 16, "key", "did you mean grid?"),
        ("job:\n- a\n", 1, 1, "key", "unknown key 'job'; did you mean jobs?"),
        ("defaults: {name: x}\njobs: [a]\n", 1, 12, "key", "name is for one job, and defaults are for all"),
        ("defaults: {grid: {x: 1}}\njobs: [a]\n", 1, 12, "key", "grid is for one job"),
        ("defaults: {gpus: two}\njobs: [a]\n", 1, 18, "attribute-value", "gpus is 'two', but must be a whole number"),
        ("jobs:\n- command: a\n  gpus: 2\n  gpus: 3\n", 4, 3, "key-twice", "gpus is in line 3 of this map already"),
        ("jobs:\n- command: a\n  tags: [y]\n", 3, 3, "key", "unknown key 'tags'; did you mean tag?"),
        ("jobs: [a]\njobs: [b]\n", 2, 1, "key-twice", "jobs is in line 1 of this map already"),
        ("jobs:\n- {command: a, gpus: two}\n", 2, 22, "attribute-value", "gpus is 'two', but must be a whole number"),
        ("jobs:\n- {command: a, mem: '18X'}\n", 2, 22, "attribute-value", "mem is '18X'"),
        ("jobs:\n- {command: a, env: {1A: 2}}\n", 2, 22, "attribute-key", "'1A' is no name of a variable"),
        ("jobs:\n- {command: a, env: {CUDA_VISIBLE_DEVICES: 2}}\n", 2, 22, "attribute-own", "gpusched sets"),
        ("jobs:\n- {command: a, env: x}\n", 2, 21, "shape", "env must be a map"),
        ("jobs:\n- {command: a, name: {x}}\n", 2, 22, "shape", "name must be text, not a map"),
        ("jobs:\n- {command: [a, b]}\n", 2, 13, "shape", "command must be text, not a list"),
        ("jobs:\n- {gpus: 2}\n", 2, 3, "shape", "either command: or run:"),
        ("jobs:\n- {command: a, run: b}\n", 2, 3, "shape", "either command: or run:"),
        ("jobs:\n- [a]\n", 2, 3, "shape", "a job must be a map"),
        ("jobs:\n- ''\n", 2, 3, "no-command", "the command is empty"),
        ("jobs:\n- {command: '# a'}\n", 2, 14, "no-command", "the command is empty"),
        ("jobs: a\n", 1, 7, "shape", "jobs must be a list"),
        ("defaults: {}\n", 1, 1, "shape", "this file has no jobs:"),
        ("- a\n- b\n", 1, 1, "shape", "a job file must be a map"),
        ("jobs:\n- a: b: c\n", 2, 7, "yaml", "this is not YAML: mapping values are not allowed"),
        ("jobs:\n- {a}-b\n", 2, 6, "yaml", "this is not YAML"),
        ("jobs: [a]\n---\njobs: [b]\n", 2, 1, "yaml", "another document"),
        ("jobs: [*a]\n", 1, 8, "yaml", "undefined alias"),
        ("jobs:\n- python 'a\n", 2, 10, "open-quote", "this quote is not closed"),
        ("jobs:\n- {command: cd a}\n", 2, 13, "setup-line", "what this line sets is lost"),
        ("jobs:\n- {command: 0001 x}\n", 2, 13, "parameter-table", "does not start with a program (0001)"),
        ("jobs:\n- {command: '[gpus=2] a'}\n", 2, 14, "attribute-end", "keys of their own"),
        ("jobs:\n- '[gpsu=2] a'\n", 2, 5, "attribute-key", "did you mean gpus?"),
        ("jobs:\n- CUDA_VISIBLE_DEVICES=1 a\n", 2, 3, "own-devices", "CUDA_VISIBLE_DEVICES itself"),
        ("jobs:\n- run: |\n    x\n    CUDA_VISIBLE_DEVICES=1 a\n", 4, 5, "own-devices", "CUDA_VISIBLE"),
        ("jobs:\n- run: |\n    x\n    echo 'a\n", 4, 10, "open-quote", "not closed"),
        ("jobs:\n- {command: a, name: x}\n- {command: b, name: x}\n", 3, 22, "name-taken", "line 2 has the name"),
        (
            "jobs:\n- {command: 'a {b}', name: x, grid: {b: [1, 2]}}\n",
            2,
            28,
            "name-taken",
            "line 2 has the name x already",
        ),
        ("jobs:\n- {command: 'a {b}', grid: {b: []}}\n", 2, 32, "sweep", "b has no values"),
        ("jobs:\n- {command: 'a {b}', grid: {b: 1..2..0}}\n", 2, 32, "sweep", "goes nowhere"),
        ("jobs:\n- {command: 'a {b}', grid: [b]}\n", 2, 28, "shape", "grid must be a map"),
        ("jobs:\n- {command: 'a {b}', zip: {b: [1], c: [1, 2]}}\n", 2, 27, "sweep", "differ in length: b 1, c 2"),
        ("jobs:\n- {command: 'a {b}', repeat: 0}\n", 2, 30, "sweep", "repeat is '0', but must be a whole number"),
        ("jobs:\n- {command: 'a {b}', csv: none.csv}\n", 2, 27, "sweep", "cannot be read: No such file"),
        ("jobs:\n- {command: 'a {b}', csv: bad.csv}\n", 2, 27, "sweep", "line 2 has 1 field"),
        (
            "jobs:\n- {command: 'a {b}', grid: {b: [1]}, exclude: {bb: 1}}\n",
            2,
            48,
            "key",
            "bb is no parameter of this sweep; did you mean b?",
        ),
        ("jobs:\n- {command: 'a {b}', grid: {b: [1]}, zip: {b: [1]}}\n", 2, 14, "sweep", "set twice"),
        ("jobs:\n- {command: 'a {b}', grid: {b: 1..2000, c: 1..2000}}\n", 2, 14, "sweep", "this makes 4,000,000 jobs"),
        ("jobs:\n- {command: 'a `{b}`', grid: {b: ['x y']}}\n", 2, 14, "placeholder", "cannot be quoted"),
        ("jobs:\n- {command: 'a {b}', grid: {b: [1]}, exclude: {b: 1}}\n", 2, 14, "sweep", "all are excluded"),
    ],
)
def test_what_cannot_be_right_is_refused_with_its_place(
    text: str, line: int, column: int, code: str, says: str
) -> None:
    found = only(text)
    assert (found.severity, found.line, found.column, found.code) == ("error", line, column, code)
    assert says in found.message
    lines = text.split("\n")
    assert found.source.decode() == lines[line - 1]


def test_every_fault_of_a_file_is_told_at_once() -> None:
    jobs = load("defalts: {}\njobs:\n- {command: a, gpsu: 1, tme: 2}\n- b 'c\n- d\n- {run: e, prio: high}\n")
    assert [(f.line, f.code) for f in jobs.errors] == [
        (1, "key"),
        (3, "key"),
        (3, "key"),
        (4, "open-quote"),
        (6, "attribute-value"),
    ]
    assert commands(jobs) == ["d"]


def test_a_fault_of_a_sweep_is_told_once() -> None:
    jobs = load("jobs:\n- {command: 'a --gpu {g} && cd {g}', name: 'x {g}', grid: {g: 0..9}}\n")
    assert [f.code for f in jobs.findings] == ["attribute-value"]


@pytest.mark.parametrize(
    ("text", "code", "says"),
    [
        ("jobs:\n- {command: a, mem: 18}\n", "attribute-mem", "18 MiB"),
        ("jobs:\n- {command: 'a {sed}', grid: {seed: 5}}\n", "near-parameter", "did you mean {seed}?"),
        ("jobs:\n- a &\n", "background", "background"),
    ],
)
def test_what_is_probably_not_meant_is_a_warning(text: str, code: str, says: str) -> None:
    found = only(text)
    assert (found.severity, found.code) == ("warning", code)
    assert says in found.message


def test_parameters_that_nothing_uses_are_told() -> None:
    jobs = load("jobs:\n- {command: a, grid: {seed: 0..2}}\n")
    assert [(f.code, f.forceable) for f in jobs.errors] == [("unused-parameter", True)]


@pytest.mark.parametrize(
    ("command", "values", "codes"),
    [
        ("a --seed {seed}", [], ["unfilled"]),
        ("a --seed {sed}", ["seed=0..2"], ["unused-parameter", "unfilled"]),
        ("a {x} '{seed}'", ["x=1"], ["unfilled"]),
        ("a", ["seed=0..2"], ["unused-parameter"]),
        ("a", ["seed=1"], ["unused-parameter"]),
        ("a {x}", ["x=1", "repeat=1..3"], []),
        ("a {} ${a} {a,b} {1..3} {fd}>x | awk '{print}'", [], []),
    ],
)
def test_a_typed_command_uses_all_its_parameters_and_leaves_no_word_in_braces(
    command: str, values: list[str], codes: list[str]
) -> None:
    axes = [parameter(text) for text in values]
    assert [f.code for f in from_command(command, axes).errors] == codes
    assert not from_command(command, axes, force=True).errors


@pytest.mark.parametrize(
    ("text", "way"),
    [
        ("x=0-9", "write -p x=0..9, or -p 'x=\"0-9\"' for the text"),
        ("x=1,2-4", "write -p x=2..4, or -p 'x=\"2-4\"' for the text"),
        ("x=0.1-0.5", "write -p x=0.1..0.5, or -p 'x=\"0.1-0.5\"' for the text"),
    ],
)
def test_a_range_with_a_dash_is_refused_unless_it_is_quoted(text: str, way: str) -> None:
    with pytest.raises(ValueError, match=re.escape(way)):
        parameter(text)


def test_values_in_quotes_and_dashes_in_words_are_texts() -> None:
    rows = parameter('x="0-9","0..9",1e-3,run-1,2024-01-05').rows
    assert [value for (value,) in rows] == ["0-9", "0..9", "1e-3", "run-1", "2024-01-05"]


def test_an_exclusion_of_nothing_is_told() -> None:
    found = only("jobs:\n- {command: 'a {b}', grid: {b: [1e-3]}, exclude: [{b: 0.001}]}\n")
    assert (found.code, found.column) == ("exclude", 51)


def test_force_and_strip_are_those_of_lists() -> None:
    text = "jobs:\n- CUDA_VISIBLE_DEVICES=1 a\n- cd x\n- run: |\n    cd x\n      CUDA_VISIBLE_DEVICES=1 b\n    c\n"
    assert len(load(text).errors) == 3
    forced = load(text, force=True)
    assert [f.severity for f in forced.findings] == ["warning"] * 3
    assert commands(forced)[0] == "CUDA_VISIBLE_DEVICES=1 a"
    stripped = load(text, strip_gpu_env=True, force=True)
    assert commands(stripped) == ["a", "cd x\n  b\nc"]
    assert stripped.specs[1].text == b"cd x\n  CUDA_VISIBLE_DEVICES=1 b\nc"


@pytest.mark.parametrize(
    ("values", "given"),
    [
        ("0..2", ["0", "1", "2"]),
        ("[0..2, 9]", ["0", "1", "2", "9"]),
        ("[\"0..2\", '0-9']", ["0..2", "0-9"]),
        ('"0..2"', ["0..2"]),
        ("run-1", ["run-1"]),
    ],
)
def test_a_range_in_a_job_file_stands_without_quotes(values: str, given: list[str]) -> None:
    assert sweep(f"grid: {{a: {values}, b: [x]}}") == [f"run {value} x" for value in given]


@pytest.mark.parametrize(
    "where", ["grid: {a: 0-9, b: [x]}", "grid: {a: [0-9], b: [x]}", "zip: {a: [1, 0-9], b: [x, y]}"]
)
def test_a_dash_between_numbers_in_a_job_file_is_refused(where: str) -> None:
    finding = only(f"jobs:\n- {{command: 'run {{a}} {{b}}', {where}}}\n")
    assert finding.message == "0-9 may be a range or a text: write 0..9, or put the text in quotes"


def test_what_is_no_text_is_refused() -> None:
    assert parse(b"jobs:\n- \xff\n", TABLES.__getitem__).errors[0].code == "encoding"
    assert load("[" * 100_000).errors[0].code == "yaml"
    assert only('jobs:\n- "a \\0"\n').code == "nul-byte"


def test_secrets_are_not_shown() -> None:
    text = render_findings(load("jobs:\n- {command: a, env: {HF_TOKEN: hf_AbCdEfGhIjKlMnOpQr}, gpsu: 1}\n").findings)
    assert "AbCd" not in text


@given(st.text(st.sampled_from("abjos:-{}[]'\"\n  |>&*#,!%{x}1\\$"), max_size=60))
def test_no_text_breaks_it(text: str) -> None:
    for prefix in ("", "jobs:\n- ", "jobs:\n- command: a {x}\n  grid: ", "jobs:\n- {command: a, env: "):
        for found in load(prefix + text).findings:
            assert found.render("f")


# ---- on the command line ---------------------------------------------------------------------------


def test_a_command_with_parameters() -> None:
    axes = [parameter("lr=1e-3,1e-4"), parameter("seed=0..2,9")]
    jobs = from_command("[name=t-{lr}-{seed} env.X='{lr}'] python t.py --lr {lr} --seed {seed} {}", axes)
    assert not jobs.findings
    assert [spec.attributes.name for spec in jobs.specs] == [
        f"t-{lr}-{seed}" for lr in ("1e-3", "1e-4") for seed in "0129"
    ]
    assert jobs.specs[0].command == b"python t.py --lr 1e-3 --seed 0 {}"
    assert jobs.specs[0].attributes.env == ((b"X", b"1e-3"),)
    assert {spec.line for spec in jobs.specs} == {1}


def test_values_may_be_quoted_as_in_a_table() -> None:
    assert parameter('x="a,b", c ,""').rows == (("a,b",), ("c ",), ("",))
    for text in ("x", "x=", "=3", "1x=3", 'x="a'):
        with pytest.raises(ValueError):
            parameter(text)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("[64,32],[128]", ["[64,32]", "[128]"]),
        ('"[64,32]","[128]"', ["[64,32]", "[128]"]),
        ("(0.9,0.999), (0.8,0.99)", ["(0.9,0.999)", "(0.8,0.99)"]),
        ("{'a': 1, 'b': 2}", ["{'a': 1, 'b': 2}"]),
        ("{'a,(': [1,2]},x", ["{'a,(': [1,2]}", "x"]),
        ("'a,b',c", ["'a,b'", "c"]),
        ("it's,that's", ["it's", "that's"]),
        ('{"a": "b,c"}', ['{"a": "b,c"}']),
        ("f(x,y)=1,2..4", ["f(x,y)=1", "2", "3", "4"]),
        ('"[64",a&b,1,1', ["[64", "a&b", "1", "1"]),
    ],
)
def test_brackets_and_quotes_stay_one_value(text: str, values: list[str]) -> None:
    assert parameter(f"x={text}").rows == tuple((value,) for value in values)


def test_what_is_half_a_value_is_refused() -> None:
    for text, says in (
        ("null,", "end in a comma"),
        ("a, ", "end in a comma"),
        ("[64,32", "[ is not closed"),
        ("64],32", "] closes nothing"),
        ("(1,2]", "] closes nothing"),
        ('"a" b,c', "cannot be read"),
    ):
        with pytest.raises(ValueError, match=re.escape(says)):
            parameter(f"x={text}")


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("range(0,5)", "0..4"),
        ("range(3)", "0..2"),
        ("range(0, 10, 5)", "0..5..5"),
        ("[1,2]", "1,2"),
        ("('a', 'b')", "a,b"),
        *((text, "") for text in ("[1,2],[3]", "[[1,2]]", "range(0)", "1,2", "{'a': 1}", "f(1,2)")),
    ],
)
def test_a_list_in_python_gets_a_hint(text: str, form: str) -> None:
    jobs = parse_sweep(Sweep("x {s}", (f"s={text}",)), SubmitOptions(Settings(), b"/"))
    assert [f.hint.partition("-p s=")[2] for f in jobs.findings] == [form] * bool(form)
    assert all(finding.severity == "hint" for finding in jobs.findings)


def test_a_fault_in_it_shows_the_command() -> None:
    (found,) = from_command("python 'x", []).errors
    assert (found.line, found.column, found.source) == (1, 8, b"python 'x")
    (found,) = from_command("[gpus={n}] python x", [parameter("n=1,two")]).errors
    assert (found.code, found.source) == ("attribute-value", b"[gpus=two] python x")


RULES = SubmitOptions(Settings(), b"/")


def test_lists_are_read_by_their_suffix(tmp_path: Path) -> None:
    (tmp_path / "models.csv").write_bytes(TABLES["models.csv"])
    text = b"jobs:\n- {command: 'esd {model_id}', csv: models.csv}\n"
    for name in ("a.yaml", "b.YML"):
        jobs = read(text, RULES, str(tmp_path / name))
        assert commands(jobs) == ["esd 'meta/llama 3'", "esd opt"]
    with pytest.raises(GpuschedError, match="cannot be right"):
        read(b"jobs:\n- a 'b\n", RULES, "a.yaml")
    assert commands(read(b"jobs: a\n", RULES, "a.txt")) == ["jobs: a"]


def test_a_sweep_reads_its_table(tmp_path: Path) -> None:
    path = tmp_path / "models.csv"
    path.write_bytes(TABLES["models.csv"])
    sweep = Sweep("esd {model_id} {n}", ("n=1..2",), str(path))
    assert commands(parse_sweep(sweep, RULES))[::3] == ["esd 'meta/llama 3' 1", "esd opt 2"]
    assert sweep.stem == Sweep("esd {model_id} {n}").stem != Sweep("esd").stem
    assert sweep.words == ["run", "-c", "esd {model_id} {n}", "-p", "n=1..2", "--each", str(path)]
    for wrong in (Sweep("a", ("n",)), Sweep("a", (), str(tmp_path / "none.csv")), Sweep("a", (), str(tmp_path))):
        with pytest.raises(GpuschedError):
            parse_sweep(wrong, RULES)


# ---- quoting: the shell is the judge ---------------------------------------------------------------

SHOW = "printf '<%s>' "
PLACES = [
    "{v}",
    "a{v}b",
    "--x={v}",
    '"{v}"',
    '"a {v} b"',
    "'{v}'",
    "'a {v}'\"{v}\"",
    '"$(printf %s {v})"',
    '"$(printf %s "{v}")"',
    "$EMPTY{v}",
    '"$EMPTY{v}"',
    "a # {w}",
    "{v} >&1",
]
NASTY = st.text(st.sampled_from("ab1 \t'\"\\$`!*?[]{}()<>|&;#~=-\n%é둘"), max_size=12)


def shell(command: bytes) -> bytes:
    environment = {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8", "EMPTY": ""}
    done = subprocess.run(["bash", "-c", command], capture_output=True, env=environment, timeout=20, check=False)
    assert done.stderr == b""
    return done.stdout


@pytest.mark.slow
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.tuples(st.sampled_from(PLACES), NASTY), min_size=1, max_size=12))
def test_values_reach_the_shell_unharmed_wherever_they_stand(uses: list[tuple[str, str]]) -> None:
    script, expected = [], b""
    for place, value in uses:
        value = value.rstrip("\n") if "$(" in place else value  # a substitution drops these, whatever is quoted
        script.append(Template(SHOW + place, ["v"], shell=True).fill({"v": value}))
        plain = place.removesuffix(" >&1").removesuffix(" # {w}")
        for mark in ('"$(printf %s "{v}")"', '"$(printf %s {v})"'):
            plain = plain.replace(mark, "{v}")
        plain = plain.replace("$EMPTY", "").replace('"', "").replace("'", "").replace("{v}", "\0")
        expected += f"<{plain}>".replace("\0", value).encode()
    assert shell("\n".join(script).encode()) == expected


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(st.binary(max_size=10).map(lambda value: value.translate(None, b"\0\r\n\"'")))
def test_any_bytes_of_a_table_reach_the_shell(value: bytes) -> None:
    axis = table(b'v\n"' + value + b'"\nend\n', [])
    jobs = from_command(SHOW + "{v}", [axis])
    assert not jobs.errors, render_findings(jobs.errors)
    is_blank = not value.decode("utf-8", "surrogateescape").strip()
    assert shell(jobs.specs[0].command) == b"<" + (b"end" if is_blank else value) + b">"


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("x `{v}`", "backquotes"),
        ('x "`{v}`"', "backquotes"),
        ("x # {v}", "a comment"),
        ("x ${y:-{v}}", "${…}"),
        ('x "${y:-{v}}"', "${…}"),
        ("x $'{v}'", "$'…'"),
        ("x \\{v}", "a backslash escape"),
        ("cat <<E\n{v}\nE\n", "a here-document"),
        ("cat <<-'E' && y\n\tit's {v}\n\tE\n", "a here-document"),
    ],
)
def test_where_a_value_cannot_be_quoted_it_is_refused(text: str, place: str) -> None:
    template = Template(text, ["v"], shell=True)
    assert template.fill({"v": "1e-3"}) == text.replace("{v}", "1e-3")
    with pytest.raises(ValueError, match="cannot be quoted") as raised:
        template.fill({"v": "a b"})
    assert place in str(raised.value)


def test_quoting_goes_on_behind_a_comment_and_a_here_document() -> None:
    text = "# don't\nx '{v}' \\\n  {v}\ny \"\n{v}\"\n"
    filled = Template(text, ["v"], shell=True).fill({"v": "a 'b"})
    assert filled == "# don't\nx 'a '\\''b' \\\n  'a '\"'\"'b'\ny \"\na 'b\"\n"
    behind = Template("cat <<E # it's\n'\nE\nx {v}", ["v"], shell=True)
    assert behind.fill({"v": "a b"}) == "cat <<E # it's\n'\nE\nx 'a b'"


def test_a_value_is_kept_apart_from_what_would_swallow_it() -> None:
    for text, filled in [("a $D{v}", "a $D''3"), ('a "$D{v}"', 'a "$D""3"'), ("a {v}>x", "a ''3>x")]:
        assert Template(text, ["v"], shell=True).fill({"v": "3"}) == filled
