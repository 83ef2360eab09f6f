"""What a job says of itself: blocks and directives, their values, and what a list makes of them."""

from __future__ import annotations

import hashlib
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpusched.common.quantities import format_size, parse_size
from gpusched.core.jobs.job import NO_ATTRIBUTES
from gpusched.core.jobs.reconcile import identity
from gpusched.core.model import MIB, Attributes, Dependency, DependencyKind, JobSpec
from gpusched.lists.attributes import KEYS, make, render, words_of
from gpusched.lists.blocks import opens_block
from gpusched.lists.findings import Finding, render_findings
from gpusched.lists.jobfile import JobFile, LineFeed, parse

GIB = 1024 * MIB


def one(line: str | bytes) -> JobSpec:
    """The only job of a list of this line, in which nothing is found."""
    jobs = parse((line if isinstance(line, bytes) else line.encode()) + b"\n")
    assert not jobs.findings, render_findings(jobs.findings)
    (spec,) = jobs.specs
    return spec


def attributes(block: str) -> Attributes:
    return one(f"[{block}] python x.py").attributes


def told(jobs: JobFile) -> list[tuple[int, int, str, str]]:
    return [(f.line, f.column, f.severity, f.code) for f in jobs.findings]


def finding(text: str) -> Finding:
    """The only thing found in a list."""
    jobs = parse(text.encode() + b"\n")
    (found,) = jobs.findings
    assert found.severity != "error" or not jobs.specs
    return found


# ---- the grammar -----------------------------------------------------------------------------------


def test_a_line_may_begin_with_what_the_job_needs() -> None:
    spec = one(
        "[gpus=2 mem=18G time=2h retries=2 name=train-a after=prep prio=10 tag=ablation cwd=runs/a env.SEED=3 "
        "gpu-model=A100] python train.py --lr 0.1"
    )
    assert spec.text == spec.command == b"python train.py --lr 0.1"
    assert spec.attributes == Attributes(
        gpus=2,
        mem_bytes=18 * GIB,
        time_limit_s=7200.0,
        retries=2,
        name="train-a",
        tags=("ablation",),
        prio=10,
        cwd=b"runs/a",
        env=((b"SEED", b"3"),),
        gpu_model="A100",
        after=(Dependency(DependencyKind.SUCCEEDED, ("prep",)),),
    )


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        ("", NO_ATTRIBUTES),
        ("gpus=0", Attributes(gpus=0)),
        ("gpus=1 \t prio=-5 ", Attributes(gpus=1, prio=-5)),
        ("prio=+5", Attributes(prio=5)),
        ("time=1h30m", Attributes(time_limit_s=5400.0)),
        ("time=90", Attributes(time_limit_s=90.0)),
        ("tag=a,b,a", Attributes(tags=("a", "b"))),
        ("name=lr=1e-3/seed:4@x+y", Attributes(name="lr=1e-3/seed:4@x+y")),
        ("name=둘", Attributes(name="둘")),
        ("gpu-model='RTX 4090'", Attributes(gpu_model="RTX 4090")),
        ("alone=yes", Attributes(alone=True)),
        ("alone=no", Attributes(alone=False)),
        ('cwd="a]b c"', Attributes(cwd=b"a]b c")),
        ("cwd=a\\]b\\ c", Attributes(cwd=b"a]b c")),
        ("cwd=a' 'b\"]\"c", Attributes(cwd=b"a b]c")),
        ("cwd=a~/b", Attributes(cwd=b"a~/b")),
        ("env.A='' env.b_1=x=y", Attributes(env=((b"A", b""), (b"b_1", b"x=y")))),
        ('env.A="\\$x \\"q\\" \\\\ \\n"', Attributes(env=((b"A", b'$x "q" \\ \\n'),))),
        ("env.A='$x `y`'", Attributes(env=((b"A", b"$x `y`"),))),
        (
            "after=a,12,007 after-any=b after-failed=c after-ended=d",
            Attributes(
                after=(
                    Dependency(DependencyKind.SUCCEEDED, ("a", "12", "7")),
                    Dependency(DependencyKind.ANY, ("b",)),
                    Dependency(DependencyKind.FAILED, ("c",)),
                    Dependency(DependencyKind.ENDED, ("d",)),
                )
            ),
        ),
    ],
)
def test_words_and_values(block: str, expected: Attributes) -> None:
    assert attributes(block) == expected


@pytest.mark.parametrize(
    ("text", "mib"),
    [
        ("500", 500),
        ("500M", 500),
        ("500MiB", 500),
        ("18G", 18432),
        ("18gib", 18432),
        ("18GB", 18432),
        ("1.5G", 1536),
        ("1T", 1 << 20),
        ("204800K", 200),
    ],
)
def test_memory_is_in_mib_or_with_a_unit(text: str, mib: int) -> None:
    assert attributes(f"mem={text}").mem_bytes == mib * MIB


def test_bytes_that_are_no_utf8_pass_through_where_they_may() -> None:
    assert one(b"[cwd=\xff/a env.A=\xfe] x").attributes == Attributes(cwd=b"\xff/a", env=((b"A", b"\xfe"),))
    (found,) = parse(b"[name=\xff] x\n").findings
    assert "UTF-8" in found.message


def test_a_job_without_gpus_has_no_budget_on_them() -> None:
    jobs = parse(b"#gpusched: mem=18G gpu-model=A100\n[gpus=0] a\n[gpus=1] b\n")
    assert [spec.attributes.mem_bytes for spec in jobs.specs] == [None, 18 * GIB]
    assert [spec.attributes.gpu_model for spec in jobs.specs] == ["", "A100"]


@pytest.mark.parametrize("line", ["[ -f x ] && python y", "[\t-f x ] && y", "[[ -f x ]] && y", "[ ]"])
def test_a_bracket_before_a_blank_is_the_shells(line: str) -> None:
    assert not opens_block(line.encode())
    assert one(line) == JobSpec(line.encode(), line.encode(), 1)


@pytest.mark.parametrize("line", ['["a", 1]', "[1, 2]", "[{}]", "[0.1, 5]"])
def test_a_table_is_no_block(line: str) -> None:
    assert finding(line).code == "parameter-table"


def test_a_block_may_go_on_in_the_next_line() -> None:
    jobs = parse(b"a\n[gpus=2 \\\n  mem=9G] \\\n  python x \\\n  --gpu 3\nb\n")
    assert [(spec.line, spec.text) for spec in jobs.specs] == [(1, b"a"), (2, b"python x   --gpu 3"), (6, b"b")]
    assert jobs.specs[1].attributes == Attributes(gpus=2, mem_bytes=9 * GIB)
    assert not jobs.findings


def test_faults_of_the_command_are_placed_behind_the_block() -> None:
    (found,) = parse(b"  [gpus=1 name='a'] python 'x\n").findings
    assert (found.code, found.column) == ("open-quote", 28)
    assert found.source == b"  [gpus=1 name='a'] python 'x"


def test_what_a_job_gets_counts_in_the_judgement_of_its_command() -> None:
    one("[gpus=0] CUDA_VISIBLE_DEVICES= python x")
    assert finding("CUDA_VISIBLE_DEVICES= python x").code == "cpu-job"
    assert finding("[gpus=1] CUDA_VISIBLE_DEVICES=3 python x").code == "own-devices"
    stripped = parse(b"[gpus=1 name=a] CUDA_VISIBLE_DEVICES=3 python x\n", strip_gpu_env=True).specs[0]
    assert (stripped.command, stripped.attributes.name) == (b"python x", "a")
    assert stripped.text == b"CUDA_VISIBLE_DEVICES=3 python x"


# ---- directives ------------------------------------------------------------------------------------


def test_directives_set_defaults_for_the_lines_below() -> None:
    jobs = parse(
        b"a\n#gpusched: mem=18G tag=x,y env.A=1 env.B=2 after=prep # two lists\nb\n[mem=9G env.A=5 env.C=3] c\n"
        b"#gpusched: mem= prio=3\nd\n[prio= tag=z env.B='' env.A= after=] e\n"
    )
    assert not jobs.findings
    after = (Dependency(DependencyKind.SUCCEEDED, ("prep",)),)
    env = ((b"A", b"1"), (b"B", b"2"))
    assert [spec.attributes for spec in jobs.specs] == [
        NO_ATTRIBUTES,
        Attributes(mem_bytes=18 * GIB, tags=("x", "y"), env=env, after=after),
        Attributes(mem_bytes=9 * GIB, tags=("x", "y"), env=((b"A", b"5"), (b"B", b"2"), (b"C", b"3")), after=after),
        Attributes(tags=("x", "y"), env=env, prio=3, after=after),
        Attributes(tags=("z",), env=((b"B", b""),)),
    ]


def test_a_directive_may_hold_a_bracket_and_end_in_a_comment() -> None:
    jobs = parse(b"#gpusched: cwd='a]b' tag=c  # d=e 'f\nx\n")
    assert not jobs.findings
    assert jobs.specs[0].attributes == Attributes(cwd=b"a]b", tags=("c",))


def test_directives_hold_in_a_stream() -> None:
    feed = LineFeed()
    first, second, rest = feed.feed(b"#gpusched: gpus=2\na\n[na"), feed.feed(b"me=b] c\n"), feed.finish()
    assert [spec.attributes for spec in first.specs] == [Attributes(gpus=2)]
    assert [spec.attributes for spec in second.specs] == [Attributes(gpus=2, name="b")]
    assert not rest.specs
    (found,) = feed.feed(b"[name=b] d\n").findings
    assert "line 3" in found.message


def test_comments_that_look_like_directives_are_told() -> None:
    for comment in ("# gpusched: gpus=2", "#gpusched gpus=2", "#GPUsched: mem=3G"):
        assert (finding(comment).severity, finding(comment).code) == ("warning", "near-directive")
    assert not parse(b"# gpusched: the list for tonight\n# gpusched\n").findings


# ---- what is wrong ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "column", "code", "says"),
    [
        ("[gpsu=2] x", 2, "attribute-key", "unknown attribute 'gpsu'; did you mean gpus?"),
        ("[memory=2G] x", 2, "attribute-key", "unknown attribute 'memory'; did you mean mem?"),
        ("[gpus=1 after-fail=a] x", 9, "attribute-key", "did you mean after-failed?"),
        ("[env=3] x", 2, "attribute-key", "unknown attribute 'env'"),
        ("[dependency=afterok:3] x", 2, "attribute-key", "unknown attribute 'dependency'; here it is after=JOB, or"),
        ("[mem=2G gres=gpu:2] x", 9, "attribute-key", "unknown attribute 'gres'; here it is gpus=N"),
        ("[zzz=3] x", 2, "attribute-key", "unknown attribute 'zzz'"),
        ("[env.1A=3] x", 2, "attribute-key", "'1A' is no name of a variable: letters, digits and _"),
        ("[env.CUDA_VISIBLE_DEVICES=3] x", 2, "attribute-own", "gpusched sets CUDA_VISIBLE_DEVICES itself"),
        ("[env.GPUSCHED_JOB_ID=3] x", 2, "attribute-own", "gpusched sets GPUSCHED_JOB_ID itself"),
        ("[gpus=1 gpus=2] x", 9, "attribute-twice", "gpus is stated twice"),
        ("[tag=a tag=b] x", 8, "attribute-twice", "tag is stated twice"),
        ("[gpus=two] x", 7, "attribute-value", "gpus is 'two', but must be a whole number, at least 0"),
        ("[gpus=-1] x", 7, "attribute-value", "at least 0"),
        ("[gpus=1.5] x", 7, "attribute-value", "gpus is '1.5'"),
        ("[gpus=2, mem=1G] x", 7, "attribute-value", "separate attributes by spaces, not by commas"),
        ("[gpus=''] x", 7, "attribute-value", "gpus is '', but"),
        ("[mem=18X] x", 6, "attribute-value", "mem is '18X', but must be MiB (500) or a number with a unit"),
        ("[mem=0] x", 6, "attribute-value", "from 1 MiB"),
        ("[time=0] x", 7, "attribute-value", "more than 0"),
        ("[time=soon] x", 7, "attribute-value", "time is 'soon', but must be seconds (90 or 90s)"),
        ("[retries=-1] x", 10, "attribute-value", "retries is '-1'"),
        ("[prio=high] x", 7, "attribute-value", "prio is 'high', but must be a whole number"),
        ("[name=12] x", 7, "attribute-value", "not digits alone"),
        ("[name='a b'] x", 7, "attribute-value", "name is 'a b', but must be letters"),
        ("[name=-a] x", 7, "attribute-value", "name is '-a'"),
        (f"[name={'a' * 121}] x", 7, "attribute-value", "at most 120 characters"),
        ("[tag=a,,b] x", 6, "attribute-value", "tag is 'a,,b'"),
        ("[tag=a, gpus=2] x", 6, "attribute-value", "separate attributes by spaces"),
        ("[after=a;b] x", 8, "attribute-value", "after is 'a;b'"),
        ("[cwd=''] x", 6, "attribute-value", "cwd is '', but must be a text"),
        ("[alone=perhaps] x", 8, "attribute-value", "true or false"),
        ("[gpu-model='\t'] x", 12, "attribute-value", "a GPU's name"),
        ("[gpus=2 mem] x", 9, "attribute-syntax", "'mem]' is not of the form key=value"),
        ("[-f x] && y", 2, "attribute-syntax", "'-f' is not of the form"),
        ("[gpus=2 python x", 1, "attribute-syntax", "this [ opens attributes and is never closed"),
        ("[gpus=2", 1, "attribute-syntax", "this [ opens attributes and is never closed"),
        ("[name='a] x", 2, "attribute-syntax", "is not of the form key=value, or the shell would expand it"),
        ('[name="a\\"] x', 2, "attribute-syntax", "is not of the form"),
        ("[cwd=a'b'\"] x", 2, "attribute-syntax", "is not of the form"),
        ("[cwd=$HOME/a] x", 2, "attribute-syntax", "'cwd=$HOME/a]' is not of the form"),
        ('[gpus=1 cwd="a $(b)"] x', 9, "attribute-syntax", "the shell would expand it"),
        ("[cwd=`a`] x", 2, "attribute-syntax", "the shell would expand it"),
        ("[cwd=~/a] x", 2, "attribute-syntax", "the shell would expand it"),
        ("[gpus=2]", 8, "no-command", "the command is empty"),
        ("[gpus=2] # x", 8, "no-command", "the command is empty"),
        ("#gpusched: name=a", 12, "attribute-name", "a name is for one job"),
        ("#gpusched: gpus=2 mem", 19, "attribute-syntax", "'mem' is not of the form"),
    ],
)
def test_what_cannot_be_right_is_refused_with_its_place(line: str, column: int, code: str, says: str) -> None:
    found = finding(line)
    assert (found.severity, found.line, found.column, found.code) == ("error", 1, column, code)
    assert says in found.message
    assert not found.forceable
    assert found.excerpt()[1].index("^") == column - 1


def test_the_keys_are_named_with_a_wrong_one() -> None:
    hint = finding("[zzz=3] x").hint
    assert all(key in hint for key in (*KEYS, "env.NAME"))


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("[mem=18] x", "attribute-mem"),
    ],
)
def test_what_is_probably_not_meant_is_a_warning(line: str, code: str) -> None:
    assert (finding(line).severity, finding(line).code) == ("warning", code)


def test_a_name_is_for_one_job() -> None:
    jobs = parse(b"[name=a] x\n\n[name=b] y\n[name=a] z\n[name='a'] cd z && w\n")
    assert [spec.line for spec in jobs.specs] == [1, 3]
    assert told(jobs) == [(4, 2, "error", "name-taken"), (5, 2, "error", "name-taken")]
    assert "line 1 has the name a already" in jobs.findings[0].message


def test_nothing_of_it_can_be_forced() -> None:
    jobs = parse(b"[gpsu=2] x\n[name=a] y\n[name=a] z\n", force=True)
    assert [spec.text for spec in jobs.specs] == [b"y"]
    assert [f.severity for f in jobs.findings] == ["error", "error"]


def test_a_directive_that_is_partly_wrong_still_sets_the_rest() -> None:
    jobs = parse(b"#gpusched: gpsu=2 mem=18G\nx\n")
    assert [f.code for f in jobs.errors] == ["attribute-key"]
    assert jobs.specs[0].attributes == Attributes(mem_bytes=18 * GIB)


def test_a_secret_in_a_variable_is_not_shown() -> None:
    text = render_findings(parse(b"[env.HF_TOKEN=hf_AbCdEfGhIjKlMnOpQr gpsu=2] x\n").findings)
    assert "AbCd" not in text


# ---- identity --------------------------------------------------------------------------------------


def test_a_job_is_the_same_whatever_it_needs_but_not_elsewhere_or_with_other_variables() -> None:
    jobs = parse(b"x\n[gpus=2 mem=3G name=a prio=3] x\n[cwd=a] x\n[cwd=b] x\n[cwd=b] x\n[env.A=1 env.B=2] x\n")
    assert [spec.occurrence for spec in jobs.specs] == [1, 2, 1, 1, 2, 1]
    assert len({identity(spec) for spec in jobs.specs}) == 4
    assert told(jobs) == [(2, 1, "hint", "duplicate"), (5, 1, "hint", "duplicate")]


def test_the_identity_of_a_job_without_these_is_that_of_its_text() -> None:
    spec = one("[gpus=2 name=a] python x")
    assert identity(spec) == hashlib.blake2b(b"python x", digest_size=16).digest()


def test_the_order_of_the_variables_does_not_matter() -> None:
    assert identity(one("[env.A=1 env.B=2] x")) == identity(one("[env.B=2 env.A=1] x"))


@given(
    *[
        st.tuples(
            st.binary(max_size=3),
            st.none() | st.binary(max_size=3),
            st.dictionaries(st.sampled_from([b"A", b"B"]), st.binary(max_size=2)),
        )
    ]
    * 2
)
def test_no_two_jobs_have_one_identity(
    a: tuple[bytes, bytes | None, dict[bytes, bytes]], b: tuple[bytes, bytes | None, dict[bytes, bytes]]
) -> None:
    one, other = (JobSpec(t, t, 1, 1, Attributes(cwd=cwd, env=tuple(env.items()))) for t, cwd, env in (a, b))
    assert (identity(one) == identity(other)) == (a == b)


# ---- there and back --------------------------------------------------------------------------------

NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_.+=@:/-]{0,20}", fullmatch=True)
REFERENCES = st.lists(NAMES | st.integers(0, 10**9).map(str), min_size=1, max_size=3, unique=True).map(tuple)
VALUES = st.binary(max_size=12).map(lambda value: value.translate(None, b"\0\n"))
VARIABLES = st.from_regex(rb"[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True).filter(
    lambda name: not name.startswith((b"CUDA_", b"NVIDIA_", b"GPUSCHED_"))
)
ATTRIBUTES = st.builds(
    lambda **stated: Attributes(**stated),
    gpus=st.none() | st.integers(1, 64),
    mem_bytes=st.none() | st.integers(1024, 1 << 28).map(lambda kib: kib << 10),
    time_limit_s=st.none() | st.integers(1, 10**7).map(lambda ms: ms / 1000),
    retries=st.none() | st.integers(0, 99),
    name=st.just("") | NAMES,
    tags=st.lists(NAMES, max_size=3, unique=True).map(tuple),
    prio=st.integers(-(10**6), 10**6),
    cwd=st.none() | VALUES.filter(bool),
    env=st.dictionaries(VARIABLES, VALUES, max_size=3).map(lambda env: tuple(env.items())),
    gpu_model=st.sampled_from(["", "A100", "RTX 4090", "it's [a] \\model"]),
    after=st.dictionaries(st.sampled_from(DependencyKind), REFERENCES).map(
        lambda after: tuple(Dependency(kind, after[kind]) for kind in DependencyKind if kind in after)
    ),
)


@settings(max_examples=50)
@given(ATTRIBUTES)
def test_attributes_that_are_written_are_read_back(attributes: Attributes) -> None:
    block = render(attributes)
    line = block + b" python x.py\n" if block else b"python x.py\n"
    jobs = parse(line)
    assert not jobs.errors, render_findings(jobs.errors)
    (spec,) = jobs.specs
    assert spec.text == b"python x.py"
    limit, stated = spec.attributes.time_limit_s, attributes.time_limit_s
    assert (limit is None) == (stated is None)
    assert limit is None or stated is None or math.isclose(limit, stated)
    assert _without_time(spec.attributes) == _without_time(attributes)


def _without_time(attributes: Attributes) -> list[tuple[str, bytes]]:
    return [word for word in words_of(attributes) if word[0] != "time"]


@given(st.integers(1024, 10**12 - 1))
def test_sizes_that_are_written_are_read_back(kib: int) -> None:
    assert parse_size(format_size(kib << 10)) == kib << 10


PIECES = [b"[", b"]", b"gpus=", b"2", b"mem=18G", b" ", b" ", b"'", b'"', b"\\", b"\\\n", b"\n", b"$", b"~", b"="]
PIECES += [b"name=a", b"env.A=", b"#gpusched: ", b"#", b"x", b"cd x", b" x && y", b"\xff", b"\0", b"\r\n", b"1"]


@given(st.lists(st.sampled_from(PIECES), max_size=20).map(b"".join), st.integers(1, 9))
def test_pieces_say_what_the_whole_says_and_nothing_breaks_it(data: bytes, size: int) -> None:
    feed = LineFeed()
    pieces = [feed.feed(data[at : at + size]) for at in range(0, len(data), size)]
    pieces.append(feed.finish())
    whole = parse(data)
    assert [spec for piece in pieces for spec in piece.specs] == list(whole.specs)
    assert [f for piece in pieces for f in piece.findings] == list(whole.findings)
    for each in whole.findings:
        assert each.render("f")


@given(st.lists(st.sampled_from([p for p in PIECES if b"\n" not in p]), max_size=12).map(b"".join))
def test_the_short_cut_for_plain_commands_agrees_with_the_long_way(line: bytes) -> None:
    """A redirection to a quoted word sends the line the long way, and changes nothing about its block."""
    block = b"[" + line + b"] "
    short, long = parse(block + b"x\n"), parse(block + b"x >$(y)\n")
    if not (short.errors or long.errors):
        assert [s.attributes for s in short.specs] == [s.attributes for s in long.specs]


def test_nothing_stated_is_nothing_said() -> None:
    assert make({}) is NO_ATTRIBUTES
    assert render(NO_ATTRIBUTES) == b""
