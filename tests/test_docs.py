"""The docs are compared with the program: what stands there exists, and what exists stands there.

`GPUSCHED_BLESS=1` (`make bless`) rewrites the generated blocks of docs/reference.md.
"""

from __future__ import annotations

import os
import re
import shlex
import textwrap
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import click
import pytest

from gpusched import errors
from gpusched.cli import main as front
from gpusched.config import NOT_SETTINGS, SETTINGS

ROOT = Path(__file__).resolve().parent.parent
REFERENCE = ROOT / "docs" / "reference.md"
WIDTH = 100
EXIT_CODES = {name: value for name, value in vars(errors).items() if name.startswith("EXIT_")}


# ---- what the program says -------------------------------------------------------------------------


@cache
def command(name: str) -> click.Command:
    found = front.cli.get_command(click.Context(front.cli), name)
    assert found is not None
    return found


def options(name: str) -> Iterator[click.Option]:
    """The options of a command; -h and --help are everywhere."""
    yield from (p for p in command(name).params if isinstance(p, click.Option) and not p.hidden)


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
    for option in options(name):
        out += [f"  {option_text(option)}", *prose(option.help or "", " " * 6)]
    for paragraph in re.split(r"\n\s*\n", (found.epilog or "").strip()):
        out += ["", *prose(paragraph, "")]
    while not out[-1]:
        out.pop()
    return "\n".join([*out, "```", ""])


def prose(paragraph: str, indent: str) -> list[str]:
    """A paragraph, wrapped, or as it is under click's mark for that."""
    if paragraph.lstrip().startswith("\b"):
        return [indent + line for line in paragraph.split("\n")[1:]]
    text = " ".join(paragraph.split())
    return textwrap.wrap(text, WIDTH, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)


def settings_block() -> str:
    rows = ["| setting | default | meaning |", "|---|---|---|"]
    for setting in SETTINGS.values():
        value = f" {setting.metavar}" if setting.metavar else " true or false"
        cells = (f"`{setting.name}`:{value}", setting.default_text(), setting.help)
        rows.append("| " + " | ".join(cell.replace("|", "\\|").replace("<", "&lt;") for cell in cells) + " |")
    return "\n".join([*rows, ""])


def blocks() -> dict[str, str]:
    return {"commands": "\n".join(map(command_block, front.COMMANDS)), "settings": settings_block()}


# ---- what the docs say -----------------------------------------------------------------------------


def pages() -> dict[str, str]:
    found = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    return {str(path.relative_to(ROOT)): path.read_text("utf-8") for path in found if path.exists()}


def mentions(word: str) -> bool:
    """Whether a page has the word as a whole: `--gpu` is not mentioned by `--gpu-list`."""
    whole = re.compile(rf"(?<![\w-]){re.escape(word)}(?![\w-])")
    return any(whole.search(text) for text in pages().values())


def test_the_generated_blocks_are_those_of_this_program() -> None:
    text = new = REFERENCE.read_text("utf-8")
    for name, block in blocks().items():
        mark = re.compile(rf"(<!-- generated: {name} -->\n).*?(<!-- end -->)", re.DOTALL)
        assert mark.search(text), f"docs/reference.md has no block {name}"
        new = mark.sub(lambda m, block=block: f"{m[1]}\n{block}\n{m[2]}", new)  # type: ignore[misc]
    if os.environ.get("GPUSCHED_BLESS"):
        REFERENCE.write_text(new, "utf-8")
    else:
        assert text == new, "docs/reference.md is old: run 'make bless' and look at what it changes"


@pytest.mark.parametrize("name", front.COMMANDS)
def test_every_command_and_every_option_is_in_the_docs(name: str) -> None:
    assert mentions(f"gpusched {name}")
    missing = [n for option in options(name) for n in names(option) if not mentions(n)]
    assert missing == []


@pytest.mark.parametrize("name", SETTINGS)
def test_every_setting_is_in_the_docs(name: str) -> None:
    assert mentions(name)


@pytest.mark.parametrize("name", sorted(NOT_SETTINGS - {"GPUSCHED_BLESS"}))
def test_every_variable_that_a_job_gets_is_in_the_docs(name: str) -> None:
    assert mentions(name)


@pytest.mark.parametrize("page", ["README.md", "docs/reference.md"])
def test_every_exit_code_is_in_the_tables_and_no_other(page: str) -> None:
    assert page in pages(), f"there is no {page}"
    section = re.search(
        r"^#+ Exit codes\n(.*?)(?=^#|\Z)", pages()[page], re.DOTALL | re.MULTILINE | re.IGNORECASE
    )
    assert section is not None, f"{page} has no section 'Exit codes'"
    codes = re.findall(r"^\| *`?(\d+)`? *\|", section[1], re.MULTILINE)
    assert sorted(map(int, codes)) == sorted(EXIT_CODES.values())


def shown_calls(text: str) -> Iterator[tuple[str, list[str]]]:
    """Every `gpusched VERB …` in the fenced shell blocks of a page, as verb and flags."""
    for block in re.findall(r"^```(?:sh|bash|console)\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        for line in block.replace("\\\n", " ").split("\n"):
            for part in re.split(r"&&|\|\|?|;", line):
                try:
                    words = shlex.split(part.strip().removeprefix("$ "), comments=True)
                except ValueError:  # a quote around what the line was split at
                    continue
                while words and re.fullmatch(r"[A-Z_]+=.*|nohup|time", words[0]):
                    words.pop(0)
                if words[:1] == ["gpusched"] and len(words) > 1:
                    yield words[1], [word.split("=")[0] for word in words[2:] if re.match(r"--?[a-z]", word)]


def test_what_the_docs_tell_people_to_type_exists() -> None:
    wrong = []
    for page, text in pages().items():
        for verb, flags in shown_calls(text):
            if verb.startswith("-"):
                continue
            known = (
                {n for option in options(verb) for n in names(option)} if verb in front.COMMANDS else set()
            )
            known |= {"-h", "--help"}
            wrong += [f"{page}: gpusched {verb}"] if verb not in front.COMMANDS else []
            wrong += [f"{page}: gpusched {verb} {flag}" for flag in flags if flag not in known]
    assert wrong == []


def test_the_check_of_shown_calls_sees_flags() -> None:
    text = "```sh\n$ A=1 gpusched run x.txt --foo=1 \\\n  -v | head -1 && gpusched status # --no\n```\n"
    assert list(shown_calls(text)) == [("run", ["--foo", "-v"]), ("status", [])]
