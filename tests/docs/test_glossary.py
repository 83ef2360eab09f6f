"""The terms: each is defined once in docs/glossary.md, and no synonym of one appears in help or messages."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from gpusched.cli import main as front
from gpusched.core.model import JobState
from tests.support.paths import ROOT
from tests.test_language import FILES, ids, texts

TERMS = (
    *(
        "job",
        "attempt",
        "outcome",
        "device",
        "sample",
        "settling",
        "claim",
        "ticket",
        "foreign",
        "queue",
        "dispatcher",
        "snapshot",
    ),
    *(
        "plan",
        "action",
        "reason",
        "shepherd",
        "stage",
        "shard",
        "worker",
        "item",
        "lease",
        "state",
        "quarantine",
    ),
    *("cluster", "coordinator", "standing queue", "submission", "address", "pause", "interactive", "budget", "sibling"),
)
# synonym -> the term to use
BANNED = {
    "card": "GPU",
    "task": "job",
    "daemon": "dispatcher",
    "told": "a plain verb",
    "canceled": "cancelled",
    "pending": "queued",
    "completed": "succeeded",
    "aborted": "cancelled",
}
SYNONYM = re.compile(rf"\b({'|'.join(BANNED)})s?\b", re.IGNORECASE)
PAGE = (ROOT / "docs" / "glossary.md").read_text()


def verbs() -> list[str]:
    return sorted(front.cli.list_commands(click.Context(front.cli)))


def test_every_term_is_defined_once() -> None:
    defined = [word.lower() for word in re.findall(r"^\*\*(.+?)\.\*\* ", PAGE, re.MULTILINE)]
    assert sorted(defined) == sorted(TERMS)


@pytest.mark.parametrize("state", [state.value for state in JobState])
def test_every_state_is_defined(state: str) -> None:
    assert f"*{state}*: " in PAGE.replace("\n", " ")


@pytest.mark.parametrize("verb", verbs())
def test_the_help_uses_no_synonym_of_a_term(verb: str) -> None:
    command = front.cli.get_command(click.Context(front.cli), verb)
    assert command is not None
    pieces = [command.get_help(click.Context(command, info_name=verb))]
    pieces += [param.help or "" for param in command.params if isinstance(param, click.Option)]
    assert not [match[0] for text in pieces for match in SYNONYM.finditer(text)]


@pytest.mark.parametrize("path", FILES, ids=ids)
def test_messages_use_no_synonym_of_a_term(path: Path) -> None:
    assert not [(line, text) for line, text in texts(path) if " " in text.strip() and SYNONYM.search(text)]
