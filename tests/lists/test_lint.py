"""Single command lines: what is refused, warned of and hinted at, and what is left alone."""

from __future__ import annotations

import random
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpusched.lists.finding_table import _TABLE, rules
from gpusched.lists.jobfile import parse
from gpusched.lists.maker import from_command
from gpusched.lists.shell_syntax import literal, simple_commands
from gpusched.lists.shell_syntax import parse as parse_syntax
from tests.support.paths import TESTS

CASES = TESTS / "cases" / "files"


def lines(text: str) -> list[str]:
    return [line.strip() for line in text.strip().splitlines()]


def codes(line: str | bytes, *, gpus: int = 1) -> set[str]:
    data = line.encode() if isinstance(line, str) else line
    return {finding.code for finding in parse(data + b"\n", gpus=gpus).findings}


def stripped(line: str) -> str:
    jobs = parse(line.encode() + b"\n", strip_gpu_env=True)
    assert not jobs.errors
    (spec,) = jobs.specs
    assert spec.text == line.encode().strip()
    return spec.command.decode()


def by_line(name: str, **options: bool) -> dict[int, set[tuple[str, str]]]:
    found: dict[int, set[tuple[str, str]]] = {}
    for finding in parse((CASES / name).read_bytes(), **options).findings:
        found.setdefault(finding.line, set()).add((finding.severity, finding.code))
    return found


# ---- the line's own GPUs ---------------------------------------------------------------------------


def test_commands_that_choose_their_own_gpu() -> None:
    assert by_line("08-overrides.txt") == {
        **{line: {("error", "own-devices")} for line in (1, 2, 3, 4)},
        5: {("warning", "cpu-job")},
    }
    jobs = parse((CASES / "08-overrides.txt").read_bytes(), force=True)
    assert len(jobs.specs) == 10
    assert not jobs.errors


def test_stripped_commands_keep_every_other_byte() -> None:
    data = (CASES / "08-overrides.txt").read_bytes()
    jobs = parse(data, strip_gpu_env=True)
    assert [spec.text for spec in jobs.specs] == data.splitlines()
    assert [spec.command.decode() for spec in jobs.specs[:5]] == [
        "python3 train.py --ix 1",
        ":; python3 train.py --ix 2",
        ": && python3 train.py --ix 3",
        "env python3 train.py --ix 4",
        "python3 train.py --ix 5 --cpu-only",
    ]
    assert [spec.command for spec in jobs.specs[5:]] == data.splitlines()[5:]
    assert {finding.severity for finding in jobs.findings} == {"hint"}


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("A=1 CUDA_VISIBLE_DEVICES=0 B=2 x", "A=1 B=2 x"),
        ("CUDA_VISIBLE_DEVICES='0,1'  CUDA_DEVICE_ORDER=FASTEST_FIRST x  y", "x  y"),
        ("CUDA_VISIBLE_DEVICES=0 >log x", ">log x"),
        ("CUDA_VISIBLE_DEVICES=0; x", ":; x"),
        ("CUDA_VISIBLE_DEVICES=0 A=1; x", "A=1; x"),
        ("export A=1 CUDA_VISIBLE_DEVICES=2; x", "export A=1; x"),
        ("export CUDA_VISIBLE_DEVICES=2 A=1; x", "export A=1; x"),
        ("export CUDA_DEVICE_ORDER=X CUDA_VISIBLE_DEVICES=2; x", ":; x"),
        ("declare -x CUDA_VISIBLE_DEVICES=2; x", ":; x"),
        ('export "CUDA_VISIBLE_DEVICES=2" && x', ": && x"),
        ("unset CUDA_VISIBLE_DEVICES; x", ":; x"),
        ("unset A CUDA_VISIBLE_DEVICES; x", "unset A; x"),
        ("nohup env A=1 CUDA_VISIBLE_DEVICES=$GPU x", "nohup env A=1 x"),
        ("time CUDA_VISIBLE_DEVICES=0 x", "time x"),
        ("(CUDA_VISIBLE_DEVICES=0 x)", "(x)"),
        ("for i in 1 2; do CUDA_VISIBLE_DEVICES=$i x; done", "for i in 1 2; do x; done"),
        ("x && CUDA_VISIBLE_DEVICES=0 y | CUDA_VISIBLE_DEVICES=1 z", "x && y | z"),
        ("bash -c 'CUDA_VISIBLE_DEVICES=0 x'", "bash -c 'x'"),
        ('sh -ec "export CUDA_VISIBLE_DEVICES=0; x $Y"', 'sh -ec ":; x $Y"'),
        ("timeout -k 5 3h env CUDA_VISIBLE_DEVICES=0 x", "timeout -k 5 3h env x"),
        ("CUDA_VISIBLE_DEVICES= x 'CUDA_VISIBLE_DEVICES=0'", "x 'CUDA_VISIBLE_DEVICES=0'"),
    ],
)
def test_every_way_to_set_them_is_found_and_removed(line: str, expected: str) -> None:
    assert codes(line) & {"own-devices", "cpu-job"}
    assert stripped(line) == expected


@pytest.mark.parametrize(
    "line",
    [
        "python3 train.py --note CUDA_VISIBLE_DEVICES=0",
        "echo CUDA_VISIBLE_DEVICES=0 x",
        "x # CUDA_VISIBLE_DEVICES=0",
        "export CUDA_VISIBLE_DEVICES; x",
        "CUDA_VISIBLE_DEVICES=$CUDA_VISIBLE_DEVICES x",
        "CUDA_VISIBLE_DEVICES=${CUDA_VISIBLE_DEVICES%%,*} x",
        "CUDA_DEVICE_ORDER=PCI_BUS_ID x",
        "MY_CUDA_VISIBLE_DEVICES=1 x",
        "bash train.sh 'CUDA_VISIBLE_DEVICES=1'",
        "env -i CUDA_VISIBLE_DEVICES=$CUDA_VISIBLE_DEVICES x",
    ],
)
def test_a_mention_or_the_given_value_is_no_choice(line: str) -> None:
    assert not codes(line)


def test_an_emptied_environment_loses_the_gpu() -> None:
    for line in (
        *("env -i PATH=/bin x", "env - x", "nohup env --ignore-environment x", "env -u CUDA_VISIBLE_DEVICES x"),
        *("env --unset=CUDA_VISIBLE_DEVICES x", "env -uCUDA_VISIBLE_DEVICES x", "bash -c 'env -i x'"),
    ):
        assert codes(line) == {"cleared-environment"}
    for line in ("env -u HOME x", "env -i CUDA_VISIBLE_DEVICES=$CUDA_VISIBLE_DEVICES x", "env x -i", "stdbuf -i 0 x"):
        assert not codes(line)


def test_a_line_that_only_sets_them_vanishes_when_stripped() -> None:
    for line in (b"export CUDA_VISIBLE_DEVICES=3\n", b"CUDA_VISIBLE_DEVICES=3; unset CUDA_DEVICE_ORDER\n"):
        assert {f.code for f in parse(line).errors} == {"own-devices", "setup-line"}
        jobs = parse(line, strip_gpu_env=True)
        assert not jobs.specs
        assert not jobs.errors


def test_a_cpu_job_is_meant_to_see_no_gpu() -> None:
    assert codes("CUDA_VISIBLE_DEVICES= x") == {"cpu-job"}
    assert codes("CUDA_VISIBLE_DEVICES=-1 x") == {"cpu-job"}
    assert not codes("CUDA_VISIBLE_DEVICES= x", gpus=0)
    assert codes("CUDA_VISIBLE_DEVICES=0 x", gpus=0) == {"own-devices"}


# ---- the background --------------------------------------------------------------------------------


def test_lines_that_leave_something_behind() -> None:
    warned = ("warning", "background")
    assert by_line("12-background.txt") == {
        **{line: {warned} for line in (1, 2, 3, 4)},
        7: {warned, ("warning", "backslash-at-end")},
    }
    assert len(parse((CASES / "12-background.txt").read_bytes()).specs) == 7


@pytest.mark.parametrize(
    "line",
    [
        "x & wait",
        "a & b & wait",
        "for i in 1 2; do x $i & done; wait",
        "(a & wait)",
        "server & client; kill $!",
        "trap 'kill 0' EXIT; server & client",
        "x 2>&1 | tee log",
        "x &> log",
        "x '&'",
        "x \\&",
        "x # a &",
        "nohup python3 x > log",
        "setsid -w x",
        "a && b",
    ],
)
def test_what_waits_for_its_own_is_fine(line: str) -> None:
    assert not codes(line)


@pytest.mark.parametrize(
    "line",
    lines(
        """
        x&
        (x &)
        { x; } &
        bash -c 'x &'
        x & disown
        tmux new -d x
        screen -dmS name x
        docker run -d image
        a & b
        x |& y &
        """
    ),
)
def test_what_outlives_the_shell_is_told(line: str) -> None:
    assert codes(line) == {"background"}


# ---- lines that do nothing by themselves ------------------------------------------------------------


def test_setup_lines_meant_for_the_lines_below() -> None:
    setup = {line: {("error", "setup-line")} for line in (2, 3, 4, 5)}
    assert by_line("14-setup-lines.txt") == {1: {("hint", "shebang")}, **setup}
    jobs = parse((CASES / "14-setup-lines.txt").read_bytes(), force=True)
    assert [spec.line for spec in jobs.specs] == [7, 8]
    assert "--setup" in jobs.findings[1].hint
    assert "&&" in jobs.findings[1].hint


@pytest.mark.parametrize(
    "line",
    lines(
        """
        A=1 B=2
        export A=1 && cd /x
        . ./env
        conda activate base
        micromamba activate x
        module load cuda
        set -e
        unset A
        ulimit -n 4096
        alias x=y
        eval "$(conda shell.bash hook)"
        A=(1 2)
        umask 077
        [ -f x ] && source x
        if [ -f x ]; then . ./x; fi
        exec > log
        declare -x A=1
        A='x y'
        cd /x # y
        """
    ),
)
def test_setup_alone_is_no_job(line: str) -> None:
    assert codes(line) == {"setup-line"}


@pytest.mark.parametrize(
    "line",
    lines(
        """
        cd x && python3 y
        source a; b
        A=1 x
        conda run -n x y
        set -e; x
        (cd x; y)
        exec python3 x
        env
        bash -c 'cd x'
        export A=$(x) && y
        eval x
        echo cd x
        """
    ),
)
def test_setup_before_a_command_is_a_job(line: str) -> None:
    assert not codes(line)


# ---- tables, options, halves -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line", ["0001 a b", "1,2,3", "id,lr,seed", "0.1 0.2", "-0.5", "1e-3\t4", "2024-01-01 x", '{"lr": 1}', "'0.1' x"]
)
def test_a_line_of_values_is_no_command(line: str) -> None:
    assert "parameter-table" in codes(line)


@pytest.mark.parametrize("line", ["7z x", "2to3 y", "./1,2 x", "/a,b/c", "$X,Y", "[ -f x ]", "~/x", "_x"])
def test_odd_names_of_programs_are_left_alone(line: str) -> None:
    assert not codes(line)


def test_each_line_of_values_is_reported() -> None:
    jobs = parse(b"a\n1 2\n3 4\nb\n5 6\n")
    assert [(f.line, f.code) for f in jobs.findings] == [(line, "parameter-table") for line in (2, 3, 5)]


@pytest.mark.parametrize(
    "line",
    lines(
        """
        for i in 1 2; do
        if x; then
        while true
        { a;
        (a
        a &&
        a |
        a ||
        && b
        | b
        done
        fi
        }
        a )
        x >
        case x in
        foo() {
        cat <<EOF
        cat <<-'EOF' | x
        """
    ),
)
def test_half_a_command_is_told(line: str) -> None:
    assert codes(line) == {"unfinished"}


@pytest.mark.parametrize(
    "line",
    lines(
        """
        for i in 1 2; do x; done
        if x; then y; else z; fi
        while a; do b; done
        { a; }
        (a; b)
        a;
        ! a
        case x in a) b;; (c|d) e;; *) f;; esac
        foo() { a; }; foo
        function f { a; }; f
        ((i++)); x
        [[ a =~ ^(b|c)$ ]] && x
        x <<< 'y'
        x < <(y)
        echo done fi }
        A=(1 2) x
        x ${A[@]} $((1 << 2))
        for ((i=0; i<3; i++)); do x; done
        until a; do b; done
        select a in b; do c; done
        time -p x
        x --a={1..3} {b,c} 'd' "e $(f "g") ${h:-i}" `j` > k 2>&1
        find . \\( -name a -o -name b \\) -exec rm {} \\;
        python x.py model={a:1} x=[a,b] +x.y=z ~w {"a":1} url?b=c s3://a/b
        while read -r l; do echo $l; done < f | awk '{print $1}' &>> g
        [ "$a" = b ] && [[ $x == a* && ! -f y ]] || { exit 1; } 2> >(tee err >&2)
        """
    ),
)
def test_a_whole_command_is_left_alone(line: str) -> None:
    assert not codes(line)


# ---- damage that shows too late ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("ssh host 'python3 train.py'", "remote"),
        ("cd x && ssh -t host nvidia-smi", "remote"),
        ("docker run --rm --gpus all image x", "all-gpus"),
        ("docker run -it --gpus=2 image x", "all-gpus"),
        ("docker run --gpus '\"device=0\"' image", "all-gpus"),
        ("docker run -d --gpus all image x", "all-gpus"),  # the same column: in place of "background"
        ("x; tail -f /dev/null", "endless"),
        ("srun --gres=gpu:2 python train.py", "slurm"),
        ("sbatch job.sh", "slurm"),
        ("x > log & tail -F log", "endless"),
        ("bash -c 'x; sleep infinity'", "endless"),
    ],
)
def test_damage_is_warned_of_before_it_is_done(line: str, code: str) -> None:
    assert codes(line) - {"background"} == {code}
    assert all(finding.severity == "warning" for finding in parse(line.encode() + b"\n").findings)


@pytest.mark.parametrize(
    "line",
    lines(
        """
        ssh-keygen -t rsa
        python srun.py sbatch
        python ssh.py --gpus all
        docker run --gpus '"device='$CUDA_VISIBLE_DEVICES'"' image x
        docker build --tag x .
        tail -n 5 log
        tail --pid=$P -f log
        timeout 60 tail -f log
        sleep 5
        """
    ),
)
def test_no_damage_is_no_warning(line: str) -> None:
    assert not codes(line)


def test_a_newer_warning_takes_the_place_of_an_older_one_at_its_column() -> None:
    (finding,) = parse(b"docker run -d --gpus all image x\n").findings
    assert finding.code == "all-gpus"


# ---- look-alikes -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "column", "says"),
    [
        ("x a – b", 5, "U+2013 EN DASH; did you mean -?"),
        ("x 모델 “hi”", 6, 'U+201C LEFT DOUBLE QUOTATION MARK; did you mean "?'),
        ("x ‘hi’", 3, "U+2018 LEFT SINGLE QUOTATION MARK; did you mean '?"),
        ("x a\u00a0b", 4, "U+00A0 NO-BREAK SPACE; did you mean a space?"),
        ("x\u200b --seed 3", 2, "U+200B ZERO WIDTH SPACE; it has no width"),
        ("x a\x85b", 4, "U+0085 NEXT LINE; did you mean a space?"),
        ("x −5", 3, "U+2212 MINUS SIGN; did you mean -?"),
    ],
)
def test_look_alikes_are_warned_of_by_name(line: str, column: int, says: str) -> None:
    for force in (False, True):
        (finding,) = parse(line.encode() + b"\n", force=force).findings
        assert (finding.severity, finding.code, finding.column) == ("warning", "look-alike", column)
        assert finding.message == f"this is {says}"


@pytest.mark.parametrize(
    "line", ["x –lr 3", "x '–lr' 3", "x —lr=3", "x ‑v", "x -–lr 3", "x \u200b--lr 3", "x \u00a0-v"]
)
def test_an_option_that_begins_with_a_look_alike_is_refused(line: str) -> None:
    (finding,) = parse(line.encode() + b"\n").findings
    assert (finding.severity, finding.code, finding.column, finding.forceable) == ("error", "look-alike", 3, True)
    assert "an option begins with U+" in finding.message
    (swept,) = from_command(line, []).findings
    assert (swept.code, swept.severity) == ("look-alike", "error")
    (job,) = parse(line.encode() + b"\n", force=True).specs
    assert job.command == line.encode()


@pytest.mark.parametrize("line", ["x 'it’s “fine” – ok'", 'x "— said he"', "x 모델 값 é", "x # – “note”", "x --a=b"])
def test_text_in_quotes_and_other_letters_are_left_alone(line: str) -> None:
    assert not codes(line)


def test_look_alikes_in_attributes_are_named() -> None:
    for block in ("[gpus=2\u00a0mem=1G] x", "[name=“a”] x", "[–gpus=2] x", "#gpusched:\u00a0mem=1G"):
        (finding,) = parse(block.encode() + b"\n").errors
        assert "U+" in finding.message and "did you mean" in finding.message


# ---- words -------------------------------------------------------------------------------------------


def test_literal_words() -> None:
    assert literal(b"""a'b c'"d\\"e"\\ f$X""") == b'ab cd"e f$X'


def test_simple_commands_and_what_runs_in_the_background() -> None:
    text = 'A=1 ü "b c" 2>x && (c $(d) & e) | f; unset g'.encode()
    found = [[word.text.decode() for word in words] for words in simple_commands(parse_syntax(text), text)]
    assert found == [["A=1", "ü", '"b c"'], ["c", "$(d)"], ["&"], ["e"], ["f"], ["unset", "g"]]


@given(st.lists(st.sampled_from([b"a", b"b c", b"\xff", b"$x", b"\xc3\xa9"]), min_size=1, max_size=6))
def test_words_are_slices_of_the_text(words: list[bytes]) -> None:
    text = b"'" + b"' && '".join(words) + b"'"
    assert [word.text for (word,) in simple_commands(parse_syntax(text), text)] == text.split(b" && ")


# ---- bash is the judge -----------------------------------------------------------------------------


def bash(script: bytes, *options: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        ["bash", *options], input=script, capture_output=True, env={"PATH": "/usr/bin:/bin"}, timeout=10, check=False
    )


@pytest.mark.slow
def test_what_bash_takes_is_hardly_ever_called_broken() -> None:
    rng = random.Random(3)
    words = ["a", "b", ";", "&&", "||", "|", "&", "(", ")", "{", "}", "if", "then", "fi", "for", "in", "do", "done"]
    words += ["while", "case", "esac", ";;", "!", "x=1", "'q'", ">f", "2>&1", "f()", "((1))", "$(a)", "#c", "<(a)"]
    starts = ["", "", "if a; then", "for i in b; do", "{", "(", "case x in", "while a; do", "f() {"]
    ends = {"if a; then": "fi", "for i in b; do": "done", "{": "; }", "(": ")", "case x in": "esac"}
    ends |= {"while a; do": "; done", "f() {": "; }"}
    taken = 0
    broken = []
    for _ in range(1200):
        start = rng.choice(starts)
        middle = " ".join(rng.choices(words, k=rng.randint(1, 6)))
        line = f"{start} {middle} {ends.get(start, '') if rng.random() < 0.8 else ''}".strip().encode()
        if bash(line + b"\n", "-n").stderr:
            continue
        taken += 1
        broken += [line] if codes(line) & {"open-quote", "unfinished"} else []
    assert taken > 50
    assert len(broken) < taken / 10, broken  # such as `{ ! ; }`


@pytest.mark.slow
def test_stripped_commands_run_with_what_they_were_given() -> None:
    show = "printenv CUDA_VISIBLE_DEVICES"
    rng = random.Random(5)
    forms = ["{} SHOW", "A=1 {} SHOW", "{} B=2 SHOW", "export {}; SHOW", "export {} && SHOW", "export A=1 {}; SHOW"]
    forms += ["env {} SHOW", "env A=1 {} B=2 SHOW", "{}; SHOW", "(export {}; SHOW)", "bash -c 'export {}; SHOW'"]
    forms += ["if true; then {} SHOW; fi", "declare -x {}; SHOW", "time -p {} SHOW", "for i in 1; do {} SHOW; done"]
    for _ in range(60):
        line = " && ".join(rng.choices(forms, k=rng.randint(1, 3)))
        line = line.replace("{}", "CUDA_VISIBLE_DEVICES=" + rng.choice(["0", '"3"', "1,2", '""'])).replace("SHOW", show)
        command = stripped(line)
        result = bash(b"export CUDA_VISIBLE_DEVICES=given\n" + command.encode() + b"\n")
        assert set(result.stdout.split()) == {b"given"}, (line, command, result)
        assert b"CUDA" not in result.stdout


def test_every_row_of_the_table_is_read() -> None:
    rows = [line for line in _TABLE.strip().splitlines() if not line.startswith("    ")]
    assert len(rows) == len(rules())
    assert {rule.severity for rule in rules().values()} == {"error", "warning", "hint"}
