"""The docs are compared with the program: what stands there exists, and what exists stands there.

`GPUSCHED_BLESS=1` (`make bless`) rewrites the generated blocks of the pages in docs/.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import textwrap
from collections.abc import Callable, Iterator, Sequence
from functools import cache

import click
import pytest

from gpusched.cli import main as front
from gpusched.common import errors
from gpusched.config.layers import NOT_SETTINGS
from gpusched.config.settings import SETTINGS
from gpusched.core.documents import job_document, metrics_head, parse_progress
from gpusched.core.jobs import lifecycle, outcome, readiness
from gpusched.core.jobs.lifecycle import TRANSITIONS, Verdict, judge
from gpusched.core.model import DeviceUse, JobState, Outcome, OutcomeKind
from gpusched.core.plan.availability import DeviceState
from gpusched.core.plan.board import device_document
from gpusched.host.queue.queue_dirs import LOCK_FD
from gpusched.lists.attributes import KEYS
from gpusched.lists.dependencies import check as check_dependencies
from gpusched.lists.jobfile import parse as parse_list
from gpusched.lists.yaml_jobs import parse as parse_jobs
from tests.support import build
from tests.support.paths import ROOT
from tests.support.sample import a_board
from tests.test_architecture import MODULES, TABLE, TREES

WIDTH = 100
EXIT_CODES = {name: value for name, value in vars(errors).items() if name.startswith("EXIT_")}


# ---- what the program says -------------------------------------------------------------------------


@cache
def command(name: str) -> click.Command:
    verb, _, below = name.partition(" ")
    found = front.cli.get_command(click.Context(front.cli), verb)
    if below and isinstance(found, click.Group):
        found = found.commands[below]
    assert found is not None
    return found


def with_subcommands(verb: str) -> list[str]:
    """A verb, and those that stand below it: `cluster`, `cluster up` ..."""
    found = command(verb)
    return [verb, *(f"{verb} {name}" for name in found.commands)] if isinstance(found, click.Group) else [verb]


def options(name: str) -> Iterator[click.Option]:
    """The options of a command, those that --help does not list last; -h and --help are everywhere."""
    found = [param for param in command(name).params if isinstance(param, click.Option)]
    yield from sorted(found, key=lambda option: option.hidden)


def names(option: click.Option) -> list[str]:
    return [*option.opts, *option.secondary_opts]


def option_text(option: click.Option) -> str:
    """One option as `-f, --flag VALUE`. Made here, since click's own form differs between its versions."""
    text = ", ".join(option.opts)
    if option.secondary_opts:
        text += " / " + ", ".join(option.secondary_opts)
    if option.is_flag or option.count:
        return text
    if isinstance(option.type, click.Choice):
        return f"{text} {option.metavar or '|'.join(map(str, option.type.choices))}"
    return f"{text} {option.metavar or option.type.name.upper()}"


def command_block(name: str) -> str:
    """One command: usage, help, options and example, in one fenced block."""
    found = command(name)
    ctx = click.Context(found, info_name=name, parent=click.Context(front.cli, info_name="gpusched"))
    out = [f"### `gpusched {name}`", "", "```text"]
    out += [f"gpusched {name} {' '.join(found.collect_usage_pieces(ctx))}", ""]
    for paragraph in re.split(r"\n\s*\n", textwrap.dedent(found.help or "").strip()):
        out += [*prose(paragraph, ""), ""]
    hidden = False
    for option in options(name):
        if option.hidden and not hidden:
            hidden = True
            out += ["", "Not in --help, since rarely used:", ""]
        out += [f"  {option_text(option)}", *prose(help_text(option), " " * 6)]
    for paragraph in re.split(r"\n\s*\n", (found.epilog or "").strip()):
        out += ["", *prose(paragraph, "")]
    while not out[-1]:
        out.pop()
    return "\n".join([*out, "```", ""])


def help_text(option: click.Option) -> str:
    """The help of an option, and what the settings table says more."""
    setting = SETTINGS.get(str(option.name))
    if setting is None or not setting.more:
        return option.help or ""
    return (option.help or "").replace(".", f"; {setting.more}.", 1)


def prose(paragraph: str, indent: str) -> list[str]:
    """A paragraph, wrapped, or as it is under click's mark for that."""
    if paragraph.lstrip().startswith("\b"):
        return [indent + line for line in paragraph.split("\n")[1:]]
    text = " ".join(paragraph.split())
    return textwrap.wrap(text, WIDTH, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)


def table(head: str, rows: Sequence[tuple[str, ...]]) -> str:
    """A Markdown table below the words of `head`, with what Markdown would read as its own made plain."""
    lines = [f"| {head} |", "|" + "---|" * (head.count("|") + 1)]
    for row in rows:
        cells = (re.sub(r"(?<!\\)\|", r"\|", cell).replace("<", "&lt;").replace(">", "&gt;") for cell in row)
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join([*lines, ""])


def settings_block() -> str:
    rows = []
    for setting in SETTINGS.values():
        value = f" {setting.metavar}" if setting.metavar else " true or false"
        meaning = setting.help + (f"; {setting.more}" if setting.more else "")
        rows.append((f"`{setting.name}`:{value}", setting.default_text(), meaning))
    return table("setting | default | meaning", rows)


def rooms_block() -> str:
    """Every module with the first sentence that it says of itself."""
    parts = []
    for room, names in rooms().items():
        rows = []
        for name in names:
            sentence = re.split(r"(?<=[.!?])\s", (ast.get_docstring(TREES[name]) or "").strip(), maxsplit=1)[0]
            rows.append((f"`{MODULES[name].relative_to(ROOT)}`", " ".join(sentence.split())))
        parts.append(f"### {room}\n\n" + table("file | what it is for", rows))
    return "\n".join(parts)


def rooms() -> dict[str, list[str]]:
    """The folders of the house, each with its modules."""
    found: dict[str, list[str]] = {}
    for name, path in MODULES.items():
        if path.name != "__init__.py":
            found.setdefault(f"{path.parent.relative_to(ROOT)}/", []).append(name)
    return found


def arrows_block() -> str:
    def words(patterns: tuple[str, ...]) -> str:
        return ", ".join("anything" if p == "*" else f"`{p or 'gpusched'}`" for p in patterns) or "-"

    rows = [(f"`{row.module or 'gpusched'}`", words(row.inside), words(row.beyond)) for row in TABLE]
    return table("module | may import, inside gpusched | beyond the standard library", rows)


def states_block() -> str:
    rows = [
        (f"`{old.value}`" if old else "-", event.value, f"`{new.value}`") for (old, event), new in TRANSITIONS.items()
    ]
    return table("from | event | to", rows)


ENDS = (
    ("exit 0", Outcome(OutcomeKind.EXITED, exit_code=0)),
    ("exit 75", Outcome(OutcomeKind.EXITED, exit_code=75)),
    ("any other exit code", Outcome(OutcomeKind.EXITED, exit_code=1)),
    ("a signal", Outcome(OutcomeKind.SIGNALLED, signal=11)),
    ("the time limit", Outcome(OutcomeKind.TIMED_OUT)),
    ("`gpu_oom`, `host_oom`", Outcome(OutcomeKind.EXITED, exit_code=1, cause="gpu_oom")),
    ("`gpu_busy`, `gpu_lost`", Outcome(OutcomeKind.EXITED, exit_code=1, cause="gpu_busy")),
    ("lost: its shepherd was killed, or the box went down", Outcome(OutcomeKind.LOST)),
    ("not started: its shepherd was killed first", Outcome(OutcomeKind.NOT_STARTED)),
    ("not started: the dispatcher was killed first", Outcome(OutcomeKind.NOT_STARTED, cause="dispatcher_gone")),
    ("not started: `disk_full`", Outcome(OutcomeKind.NOT_STARTED, cause="disk_full")),
    (
        "not started: `bad_command` (no such working directory or shell)",
        Outcome(OutcomeKind.NOT_STARTED, cause="bad_command"),
    ),
    ("interrupted: by TERM, by the second Ctrl-C, by `stop --now`", Outcome(OutcomeKind.INTERRUPTED)),
    ("cancelled", Outcome(OutcomeKind.CANCELLED)),
)


def judgement_block() -> str:
    """What judge() makes of the first such end of a job that has one retry, and of the first that is final."""
    rows = []
    for words, end in ENDS:
        first = judge(end, build.job(retries=1), cancel_asked=False)
        last = judge(end, build.job(retries=1, tries=1, losses=3), cancel_asked=False)
        rows.append(
            (words, becomes(first), spends(first), becomes(last) if last.event is not first.event else "the same")
        )
    return table("it ended by | the job is then | spends | after one try and three losses", rows)


def becomes(verdict: Verdict) -> str:
    state = TRANSITIONS[JobState.RUNNING, verdict.event].value
    return f"`{state}`" + (f", after {verdict.delay_s:g} s" if verdict.delay_s else "")


def spends(verdict: Verdict) -> str:
    return "a try" if verdict.tries else "a loss" if verdict.losses else "nothing"


BLOCKS: dict[str, dict[str, Callable[[], str]]] = {
    "docs/reference.md": {
        "commands": lambda: "\n".join(
            command_block(name) for verb in front.COMMANDS for name in with_subcommands(verb)
        ),
        "settings": settings_block,
    },
    "docs/architecture.md": {
        "rooms": rooms_block,
        "arrows": arrows_block,
        "states": states_block,
        "judgement": judgement_block,
    },
}


# ---- what the docs say -----------------------------------------------------------------------------


def pages() -> dict[str, str]:
    found = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return {str(path.relative_to(ROOT)): path.read_text("utf-8") for path in found if path.exists()}


def mentions(word: str) -> bool:
    """Whether a page has the word as a whole: `--gpu` is not mentioned by `--gpu-list`."""
    whole = re.compile(rf"(?<![\w-]){re.escape(word)}(?![\w-])")
    return any(whole.search(text) for text in pages().values())


@pytest.mark.parametrize("page", BLOCKS)
def test_the_generated_blocks_are_those_of_this_program(page: str) -> None:
    path = ROOT / page
    text = new = path.read_text("utf-8")
    for name, make in BLOCKS[page].items():
        mark = re.compile(rf"(<!-- generated: {name} -->\n).*?(<!-- end -->)", re.DOTALL)
        assert mark.search(text), f"{page} has no block {name}"
        block = make()
        new = mark.sub(lambda m, block=block: f"{m[1]}\n{block}\n{m[2]}", new)  # type: ignore[misc]
    if os.environ.get("GPUSCHED_BLESS"):
        path.write_text(new, "utf-8")
    else:
        assert text == new, f"{page} is old: run 'make bless' and look at what it changes"


@pytest.mark.parametrize("name", front.COMMANDS)
def test_every_command_and_every_option_is_in_the_docs(name: str) -> None:
    assert mentions(f"gpusched {name}")
    missing = [n for option in options(name) for n in names(option) if not mentions(n)]
    assert missing == []


@pytest.mark.parametrize("name", SETTINGS)
def test_every_setting_is_in_the_docs(name: str) -> None:
    assert mentions(name)


@pytest.mark.parametrize("name", sorted(NOT_SETTINGS - {"GPUSCHED_BLESS", LOCK_FD}))
def test_every_variable_that_a_job_gets_is_in_the_docs(name: str) -> None:
    assert mentions(name)


@pytest.mark.parametrize("page", ["README.md", "docs/reference.md"])
def test_every_exit_code_is_in_the_tables_and_no_other(page: str) -> None:
    assert page in pages(), f"there is no {page}"
    section = re.search(r"^#+ Exit codes\n(.*?)(?=^#|\Z)", pages()[page], re.DOTALL | re.MULTILINE | re.IGNORECASE)
    assert section is not None, f"{page} has no section 'Exit codes'"
    codes = re.findall(r"^\| *`?(\d+)`? *\|", section[1], re.MULTILINE)
    assert sorted(map(int, codes)) == sorted(EXIT_CODES.values())


# ---- tables of the docs against the code -----------------------------------------------------------


def first_cells(page: str, heading: str) -> set[str]:
    """The words in code marks in the first column of the tables of a section."""
    found = re.search(rf"^(#+) {re.escape(heading)}\n(.*?)(?=^\1 |\Z)", pages()[page], re.DOTALL | re.MULTILINE)
    assert found is not None, f"{page} has no section {heading!r}"
    cells = re.findall(r"^\|((?:[^|\n]|\\\|)*)\|", found[2], re.MULTILINE)
    return {word for cell in cells for word in re.findall(r"`([^`]+)`", cell)}


def test_every_field_of_the_metrics_is_in_the_docs_and_no_other() -> None:
    zeros = dict.fromkeys(("total_wait_time", "started_jobs", "total_job_time", "total_runtime", "start_time"), 0.0)
    head = metrics_head(dict.fromkeys(JobState, 0), zeros, 0.0)
    job = build.job_row()
    attempt = build.attempt_row(devices=(DeviceUse("GPU-1", 0),))
    row = job_document(job, [attempt], "/q")
    devices = device_document(a_board().devices[0], None)
    assert first_cells("docs/reference.md", "The metrics") == {*head, *row, *devices, "devices", "jobs"}


def test_every_outcome_and_cause_is_in_the_docs() -> None:
    told = first_cells("docs/reference.md", "How an attempt ends")
    causes = {*outcome._CAUSE_WORDS, *lifecycle.FREE_CAUSES, *lifecycle.NO_FAULT_CAUSES}
    causes |= {lifecycle.CAUSE_FAILURES, readiness.CAUSE_DEPENDENCY, readiness.CAUSE_NOT_NEEDED}
    assert told == {kind.value for kind in OutcomeKind} | causes


def test_every_attribute_is_in_the_docs_and_no_other() -> None:
    assert first_cells("docs/jobs.md", "Attributes") == {*KEYS, "env.NAME"}


def test_the_lists_that_the_docs_show_are_right() -> None:
    text = pages()["docs/jobs.md"]
    lines = re.findall(r"```text\n(\[name=prep .*?)```", text, re.DOTALL)
    files = re.findall(r"```yaml\n(defaults:.*?)```", text, re.DOTALL)
    found = [parse_list(block.encode()) for block in lines] + [parse_jobs(f.encode(), lambda path: b"") for f in files]
    assert [len(jobs.specs) for jobs in found] == [4, 8, 10]
    for jobs in found:
        assert not jobs.findings
        assert not check_dependencies(jobs.specs)


def test_every_state_of_a_device_is_in_the_docs() -> None:
    told = first_cells("docs/architecture.md", "The states of a device")
    assert told == {state.value for state in DeviceState}


def test_every_key_of_a_progress_file_is_in_the_docs() -> None:
    text = pages()["docs/reference.md"]
    example = re.search(r"```json\n(.*?)```", text, re.DOTALL)
    assert example is not None
    shown = json.loads(example[1])
    assert parse_progress(example[1]) == shown
    assert set(shown) == {"done", "total", "unit", "ready", "message", "memory_bytes"}


def test_every_link_between_the_pages_leads_somewhere() -> None:
    broken = []
    for page, text in pages().items():
        prose = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
        for target in re.findall(r"\]\(([^)\s]+)\)", prose):
            path, _, anchor = target.partition("#")
            if "://" in target:
                continue
            aim = (ROOT / page).parent / path if path else ROOT / page
            if not aim.exists() or (anchor and anchor not in anchors(aim.read_text("utf-8"))):
                broken.append(f"{page}: {target}")
    assert broken == []


def anchors(text: str) -> set[str]:
    """The names that headings get when they are shown as a page."""
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


# ---- commands that the docs show ------------------------------------------------------------------


def shown_calls(text: str) -> Iterator[tuple[str, list[str]]]:
    """Every `gpusched VERB …` in the shell blocks of a page, and in its sentences, as verb and flags."""
    blocks = re.findall(r"^```(?:sh|bash|console)\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    for block in [*blocks, *re.findall(r"`(gpusched [a-z][^`\n]*)`", text)]:
        for line in block.replace("\\\n", " ").split("\n"):
            for part in re.split(r"&&|\|\|?|;", line):
                try:
                    words = shlex.split(part.strip().removeprefix("$ "), comments=True)
                except ValueError:  # a quote around what the line was split at
                    continue
                while words and re.fullmatch(r"[A-Z_]+=.*|nohup|time", words[0]):
                    words.pop(0)
                if "--" in words:  # behind it stands somebody else's command
                    words = words[: words.index("--")]
                if words[:1] == ["gpusched"] and len(words) > 1:
                    yield words[1], [word.split("=")[0] for word in words[2:] if re.match(r"--?[a-z]", word)]


def test_what_the_docs_tell_people_to_type_exists() -> None:
    wrong = []
    for page, text in pages().items():
        for verb, flags in shown_calls(text):
            if verb.startswith("-"):
                continue
            verbs = with_subcommands(verb) if verb in front.COMMANDS else []
            known = {n for each in verbs for option in options(each) for n in names(option)}
            known |= {"-h", "--help"}
            wrong += [f"{page}: gpusched {verb}"] if verb not in front.COMMANDS else []
            wrong += [f"{page}: gpusched {verb} {flag}" for flag in flags if flag not in known]
    assert wrong == []


def test_the_check_of_shown_calls_sees_flags() -> None:
    text = "```sh\n$ A=1 gpusched run x.txt --foo=1 \\\n  -v | head -1 && gpusched status -- a --b # --no\n```\n"
    assert list(shown_calls(text)) == [("run", ["--foo", "-v"]), ("status", [])]
