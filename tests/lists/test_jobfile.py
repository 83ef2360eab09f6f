"""Files of commands: which lines are jobs, byte for byte, and how lines are joined."""

from __future__ import annotations

import random
import subprocess
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpusched.lists.findings import Finding, render_findings
from gpusched.lists.jobfile import SCRIPT_BYTES, JobFile, LineFeed, needs_script, parse
from gpusched.lists.lint import check
from gpusched.lists.shell_syntax import continues, find_error
from gpusched.lists.shell_syntax import parse as parse_syntax
from tests.support.paths import TESTS

CASES = TESTS / "cases" / "files"


def case(name: str) -> bytes:
    return (CASES / name).read_bytes()


def commands(jobs: JobFile) -> list[bytes]:
    return [spec.command for spec in jobs.specs]


def told(jobs: JobFile) -> list[tuple[int, str, str]]:
    return [(finding.line, finding.severity, finding.code) for finding in jobs.findings]


# ---- the cases -------------------------------------------------------------------------------------


def test_a_list_kept_as_a_notebook() -> None:
    jobs = parse(case("01-annotated.txt"))
    assert [spec.line for spec in jobs.specs] == [11, 12, 14, 16, 17]
    assert [spec.occurrence for spec in jobs.specs] == [1, 1, 2, 1, 1]
    assert jobs.specs[1].text.endswith(b"   # lr was 0.005")
    assert jobs.specs[4].text == b"python3 train.py --tag set#B --config conf/b/full.py"
    (repeats,) = jobs.findings
    assert (repeats.severity, repeats.message) == ("hint", "line 14 repeats line 11")


def test_continuations() -> None:
    jobs = parse(case("03-continued.txt"))
    assert [spec.line for spec in jobs.specs] == [1, 4, 11]
    assert jobs.specs[0].text.endswith(b"--hidden 512           --hops 7  --heads 8 --lr 0.01  --wd=1e-05")
    assert jobs.specs[1].text.endswith(b"--heads 8 \t  --lr 0.001")
    assert jobs.specs[2].text == b"python3 train.py --dataset delta --pattern 'C:\\tmp\\'"
    assert told(jobs) == [(8, "error", "backslash-blank"), (9, "error", "option-line")]
    assert all(finding.forceable for finding in jobs.errors)


def test_forced_a_backslash_with_a_blank_runs_as_the_shell_would() -> None:
    jobs = parse(case("03-continued.txt"), force=True)
    assert jobs.specs[2].command == b"python3 train.py --dataset gamma --batch 2000 \\ "
    assert jobs.specs[3].command == b"--hops 9"
    assert not jobs.errors


def test_bom_crlf_and_names_in_other_scripts() -> None:
    jobs = parse(case("05-bom-crlf.txt"))
    assert [spec.line for spec in jobs.specs] == [2, 4, 5]
    assert jobs.specs[1].command == "python3 train.py -c configs/Größe.json -m 둘".encode()
    assert jobs.specs[2].command == b"python3 train.py --touch out.txt"
    assert not jobs.findings


def test_a_table_of_parameters_is_refused() -> None:
    jobs = parse(case("06-params.txt"))
    assert not jobs.specs
    assert {finding.code for finding in jobs.findings} == {"parameter-table"}
    assert "this does not start with a program (0001)" in jobs.findings[0].message
    forced = parse(case("06-params.txt"), force=True)
    assert len(forced.specs) == 114
    assert {finding.severity for finding in forced.findings} == {"warning"}


@pytest.mark.slow
def test_very_many_and_very_long_lines(tmp_path: Path) -> None:
    script = tmp_path / "19-make_huge.py"
    script.write_bytes(case(script.name))
    subprocess.run(["python3", str(script)], check=True)
    data = (tmp_path / "19-100k.txt").read_bytes()
    tracemalloc.start()
    jobs = parse(data)
    used = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (len(jobs.specs), len(jobs.findings)) == (100_000, 10_000)
    assert used < 60 << 20
    long = parse((tmp_path / "19-long.txt").read_bytes())
    assert not long.findings
    assert [needs_script(command) for command in commands(long)] == [True, False, False]


def test_only_what_the_kernel_would_refuse_needs_a_script() -> None:
    assert not needs_script(b"x" * (SCRIPT_BYTES - 1))
    assert needs_script(b"x" * SCRIPT_BYTES)
    assert SCRIPT_BYTES < 131_072


def test_resuming_needs_the_text_and_its_occurrence() -> None:
    first, second = (parse(case(f"38-list-v{n}.txt")) for n in (1, 2))
    known = {(spec.text, spec.occurrence) for spec in first.specs}
    new = [spec.line for spec in second.specs if (spec.text, spec.occurrence) not in known]
    assert new == [2, 4, 7, 8]


@pytest.mark.parametrize("name", ["10-uses-assigned", "16-one-fails", "18-reads-stdin", "34-tree", "36-ctrlc"])
def test_nothing_is_found_in_good_lists(name: str) -> None:
    data = case(f"{name}.txt")
    jobs = parse(data)
    assert commands(jobs) == data.splitlines()
    assert not jobs.findings


# ---- lines -----------------------------------------------------------------------------------------


def test_an_empty_file_has_no_jobs_and_is_complete() -> None:
    assert parse(b"") == JobFile((), (), True)
    assert parse(b"\n  \n\t\n# x\n") == JobFile((), (), True)


def test_bytes_that_are_no_utf8_pass_through() -> None:
    assert commands(parse(b"cat \xff\xfe/\x80 '\xc3'\n")) == [b"cat \xff\xfe/\x80 '\xc3'"]


def test_a_missing_last_newline_is_told_apart() -> None:
    assert parse(b"a\nb\n").complete
    half = parse(b"a\nb")
    assert not half.complete
    assert commands(half) == [b"a", b"b"]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"a \\\nb\n", [b"a b"]),
        (b"a\\\nb\n", [b"ab"]),
        (b"a \\\r\n b\r\n", [b"a  b"]),
        (b"a \\\\\nb\n", [b"a \\\\", b"b"]),
        (b"a \\\n\nb\n", [b"a", b"b"]),
        (b'a "x\\\ny"\n', [b'a "xy"']),
        (b"a $(echo \\\nb)\n", [b"a $(echo b)"]),
        (b"a \\\n'b' \\\n`c`\n", [b"a 'b' `c`"]),
        (b"a &\\\n& b\n", [b"a && b"]),
        (b"a x\\\n#b\n", [b"a x#b"]),
        (b"a \\\n#b \\\n", [b"a #b \\"]),
        (b"# a \\\nb\n", [b"b"]),
        (b"  \ta\t \n", [b"a"]),
        (b"a\rb\n", [b"a\rb"]),
    ],
)
def test_lines_are_joined_as_the_shell_joins_them(data: bytes, expected: list[bytes]) -> None:
    assert commands(parse(data)) == expected


def test_a_backslash_in_a_comment_joins_nothing() -> None:
    jobs = parse(b"a # x \\\n--b\n")
    assert told(jobs) == [(2, "error", "option-line")]


def test_the_line_of_a_job_is_its_first_and_findings_point_into_the_right_one() -> None:
    jobs = parse(b"\na \\\n  --x \\\n  y &\n\nb\n")
    assert [spec.line for spec in jobs.specs] == [2, 6]
    (finding,) = jobs.findings
    assert (finding.line, finding.column, finding.source) == (4, 5, b"  y &")


@pytest.mark.parametrize(
    ("data", "line", "column"),
    [
        (b"a\nb 'c\nd\n", 2, 3),
        (b'b "c\n', 1, 3),
        (b"b \\\nc 'd\n", 2, 3),
        (b"b 'c\\\nd'\n", 1, 3),
        ("가 '나\n".encode(), 1, 3),
    ],
)
def test_an_open_quote_is_refused_with_its_place(data: bytes, line: int, column: int) -> None:
    finding = parse(data, force=True).errors[0]
    assert (finding.code, finding.line, finding.column) == ("open-quote", line, column)
    assert not finding.forceable


@pytest.mark.parametrize("text", ["b `c", "b $(c", "b ${c", 'b "$(c"', "b 'c' \"$(d 'e')\" ${f"])
def test_what_else_is_open_is_refused_unless_forced(text: str) -> None:
    data = text.encode() + b"\n"
    assert told(parse(data)) == [(1, "error", "unfinished")]
    assert commands(parse(data, force=True)) == [text.encode()]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("text", ["a b\nc d\n", "# 한국어\r\na\r\nb\r\n", "a b"])
def test_another_encoding_is_refused_once_by_its_name(encoding: str, text: str) -> None:
    data = text.encode(encoding)
    for pieces in ([data], [data[:3], data[3:]], [data[n : n + 1] for n in range(len(data))]):
        feed = LineFeed(force=True)
        parts = [*map(feed.feed, pieces), feed.finish()]
        (finding,) = [finding for part in parts for finding in part.findings]
        assert finding.code == "encoding" and finding.severity == "error"
        assert "UTF-16" in finding.message and "iconv -f UTF-16" in finding.message
        assert not [spec for part in parts for spec in part.specs]


def test_lines_that_end_in_cr_alone_are_refused() -> None:
    assert told(parse(b"a b\rc d\re f\r")) == [(1, "error", "encoding")]
    assert commands(parse(b"a b\r\nc d\r")) == [b"a b", b"c d"]


def test_a_nul_byte_is_refused() -> None:
    for data in (b"a\nb \0c\n", b"a\nb '\0'\n", b'a\nb "\0"\n'):
        jobs = parse(data, force=True)
        assert told(jobs) == [(2, "error", "nul-byte")]
        assert commands(jobs) == [b"a"]


def test_a_backslash_at_the_end_of_the_file() -> None:
    jobs = parse(b"a \\\n")  # the shell joins nothing to it
    assert commands(jobs) == [b"a"]
    assert told(jobs) == [(1, "warning", "backslash-at-end")]
    jobs = parse(b"a\nb \\")  # half saved: the shell would pass the backslash on
    assert commands(jobs) == [b"a"]
    assert told(jobs) == [(2, "error", "backslash-at-end")]


def test_a_shebang_is_no_job() -> None:
    assert told(parse(b"#!/bin/bash\na\n")) == [(1, "hint", "shebang")]
    assert told(parse(b"#!/usr/bin/env python3\nimport os\n")) == [(1, "error", "script")]


# ---- rendering -------------------------------------------------------------------------------------


def test_a_finding_shows_its_line_with_a_caret() -> None:
    (finding,) = parse("python3 둘.py 'x\n".encode()).findings
    assert finding.render("list.txt").splitlines() == [
        "list.txt:1:14: error: this quote is not closed on its line",
        "    python3 둘.py 'x",
        "                  ^",
        "  a command has one line: join lines by a backslash at the end, or put them into a script",
    ]
    assert finding.render().startswith("line 1, column 14: error: ")


def test_a_long_line_is_shown_around_the_place() -> None:
    (finding,) = parse(b"python3 " + b"x" * 500 + b" 'y " + b"z" * 500 + b"\n").findings
    text, caret = finding.excerpt()
    assert len(text) < 120
    assert text[caret.index("^")] == "'"


def test_secrets_and_escapes_are_not_shown() -> None:
    data = b"HF_TOKEN=hf_AbCdEfGhIjKlMnOpQrStUv \x1b[31m 'x\nHF_TOKEN='abc def\n\x1b2J 'x\n"
    text = render_findings(parse(data).findings)
    assert "hf_A" not in text
    assert "abc" not in text
    assert "\x1b" not in text


def test_many_findings_are_grouped() -> None:
    jobs = parse(b"cd x\n" * 40 + b"a &\n" + b"b 'c\n")
    text = render_findings(jobs.findings, "f", limit=2)
    assert text.count("--setup") == 1
    assert "… and 38 more like this: line 3, 4, 5, 6, 7, 8, 9, 10, 11, 12 …" in text
    assert text.index("not closed") < text.index("background")


# ---- properties ------------------------------------------------------------------------------------

PIECES = [b"a", b"b", b" ", b" ", b"\t", b"\\", b"\\\n", b"\n", b"\n", b"\r\n", b"'", b'"', b"#", b" #", b"$", b"${x}"]
PIECES += [b"$(", b")", b"(", b"`", b"&", b";", b"|", b">", b"<", b"{", b"}", b"=", b"\xff", b"\xc3\xa9", b"\0"]
PIECES += [b"CUDA_VISIBLE_DEVICES=1 ", b"export ", b"cd x", b"1 ", b"for ", b"done", b"bash -c 'a'", b"--gpu 2"]
SHELLISH = st.lists(st.sampled_from(PIECES), max_size=25).map(b"".join)


def merged(pieces: list[JobFile]) -> tuple[list[object], list[Finding]]:
    specs: list[object] = [spec for piece in pieces for spec in piece.specs]
    return specs, [finding for piece in pieces for finding in piece.findings]


@given(SHELLISH, st.integers(1, 7), st.booleans(), st.booleans())
def test_pieces_say_what_the_whole_says(data: bytes, size: int, force: bool, strip: bool) -> None:
    feed = LineFeed(force=force, strip_gpu_env=strip)
    pieces = [feed.feed(data[at : at + size]) for at in range(0, len(data), size)]
    pieces.append(feed.finish())
    whole = parse(data, force=force, strip_gpu_env=strip)
    assert merged(pieces) == merged([whole])
    assert whole.complete == (not data or data.endswith(b"\n"))


@given(SHELLISH)
def test_every_byte_of_a_job_is_in_the_file(data: bytes) -> None:
    for spec in parse(data, force=True).specs:
        assert spec.text == spec.command
        assert spec.text.translate(None, b"\\\r\n") in data.translate(None, b"\\\r\n")


@given(st.lists(st.binary(min_size=1, max_size=12).map(lambda word: b"'" + word.replace(b"'", b"") + b"'"), max_size=5))
def test_any_bytes_survive_in_quotes(words: list[bytes]) -> None:
    line = b"echo " + b" ".join(words)
    if not set(line) & {0, 10}:
        line = line.rstrip(b"\r")
        assert commands(parse(line + b"\n")) == [line.strip(b" \t")]


@given(SHELLISH)
def test_the_short_cut_for_plain_lines_agrees_with_the_parser(data: bytes) -> None:
    for line in data.split(b"\n"):
        jobs = parse(line + b"\n", force=True)
        if jobs.specs and not jobs.findings:
            verdict = check(line.rstrip(b"\r"))
            codes = {fault.code for fault in verdict.faults.values() if fault.severity != "hint"}
            assert not codes
            assert not verdict.setup


@given(SHELLISH)
def test_findings_can_be_shown(data: bytes) -> None:
    for finding in parse(data).findings:
        assert 1 <= finding.line <= data.count(b"\n") + 1
        assert "\x00" not in finding.render("f")


# ---- bash is the judge -----------------------------------------------------------------------------

PRELUDE = b"p() { printf '<%s>' \"$@\"; echo; }\n"


def bash(script: bytes, *options: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        ["bash", *options], input=script, capture_output=True, env={"LC_ALL": "C"}, timeout=10, check=False
    )


@pytest.mark.slow
def test_joined_lines_mean_what_bash_makes_of_the_file() -> None:
    rng = random.Random(7)
    words = [b"a", b"b", b" ", b" ", b"\t", b"\\", b"'", b'"', b"#", b" #", b"\\\n", b"\\\n", b" \\\n", b"\np ", b"\n"]
    compared = 0
    for _ in range(700):
        data = b"p " + b"".join(rng.choices(words, k=rng.randint(1, 14))) + b"\n"
        lines = [line for line in data.replace(b"\\\n", b"").split(b"\n") if line.strip(b" \t")]
        if not all(line.lstrip(b" \t")[:2] in (b"p ", b"p\t") or line.lstrip(b" \t")[:1] == b"#" for line in lines):
            continue
        jobs = parse(data, force=True)
        if jobs.errors or any(b"'" in s.text and b"\n" in s.text for s in jobs.specs):
            continue
        compared += 1
        together = bash(PRELUDE + data)
        each = b"".join(bash(PRELUDE + command + b"\n").stdout for command in commands(jobs))
        assert each == together.stdout, data
    assert compared > 50


@pytest.mark.slow
def test_open_quotes_and_parentheses_are_where_bash_says_so() -> None:
    """The grammar and bash part ways only in odd places, such as a comment sign behind an escaped blank."""
    rng = random.Random(11)
    words = [b"a", b" ", b"'", b'"', b"$'", b"\\", b"`", b"$(", b")", b"${", b"}", b"$", b"#", b" #", b"x"]
    compared = disagreed = 0
    for _ in range(800):
        line = b"p " + b"".join(rng.choices(words, k=rng.randint(1, 9)))
        if continues(line):
            continue
        answer = bash(line + b"\n", "-n")
        if b"syntax error near" in answer.stderr or b"bad substitution" in answer.stderr:
            continue
        is_open = b"looking for matching" in answer.stderr or b"unexpected end of file" in answer.stderr
        compared += is_open
        disagreed += (find_error(parse_syntax(line)) is not None) != is_open
    assert compared > 100
    assert disagreed < 25


@settings(max_examples=50)
@given(st.binary(max_size=200))
def test_no_input_breaks_it(data: bytes) -> None:
    parse(data)
    parse(data, force=True, strip_gpu_env=True, gpus=2)


def test_directives_of_slurm_are_comments_and_that_is_told() -> None:
    jobs = parse(b"#!/bin/bash\n#SBATCH --gres=gpu:2\n#SBATCH --time=2:00:00\npython train.py\n")
    assert [(f.severity, f.code, f.line) for f in jobs.findings if f.code != "shebang"] == [
        ("warning", "slurm-directive", 2),
        ("warning", "slurm-directive", 3),
    ]
    assert "#gpusched: gpus=1 mem=18G time=2:00:00" in jobs.findings[1].hint
    assert [spec.command for spec in jobs.specs] == [b"python train.py"]
