"""An option of an analysis is described once: one more field is in command line, stage, record and docs."""

from __future__ import annotations

from ast import literal_eval
from dataclasses import dataclass
from typing import Any

import click
import pytest
from click.testing import CliRunner
from gpusched.commands.esd.command_line import stage_parser

from gpusched.cli.features.table import table_options
from gpusched.common.errors import GpuschedError
from gpusched.common.option_table import options_of, words_of
from gpusched.esd.options import AnalysisOptions, option
from tests.docs import test_docs


@dataclass(frozen=True, kw_only=True)
class MoreOptions(AnalysisOptions):
    """The options of an analysis, and two that do not exist."""

    power: float = option(2.0, "Raise eigenvalues to the power X.", metavar="X", least=0, changes_numbers=True)
    warm_start: bool = option(True, "Begin from nothing.")


@click.command()
@table_options(MoreOptions)
def verb(**values: Any) -> None:
    """Print the options that are not the defaults."""
    print(words_of(MoreOptions(**values), options_of(MoreOptions)))


def test_a_new_option_is_in_the_command_line_and_reaches_the_stage() -> None:
    help_text = " ".join(CliRunner().invoke(verb, ["--help"]).output.split())
    assert "--power X Raise eigenvalues to the power X. [default: 2]" in help_text
    assert "--no-warm-start Begin from nothing." in help_text
    words = CliRunner().invoke(verb, ["--power", "3", "--no-warm-start", "--solver", "SVD"]).output
    assert words == "['--power', '3.0', '--no-warm-start', '--solver', 'svd']\n"
    args = stage_parser(MoreOptions).parse_args(["--model", "m", "--output-dir", "o", *literal_eval(words)])
    assert (args.power, args.warm_start, args.solver) == (3.0, False, "svd")
    args = stage_parser(MoreOptions).parse_args(["--model", "m", "--output-dir", "o"])
    assert MoreOptions(**{each.name: getattr(args, each.name) for each in options_of(MoreOptions)}) == MoreOptions()


def test_a_new_option_is_in_the_record_if_it_changes_numbers() -> None:
    record = MoreOptions(power=3.0, warm_start=False).as_record()
    assert record["power"] == 3.0 and "warm_start" not in record
    assert {name for name in record if name not in AnalysisOptions().as_record()} == {"power"}


def test_a_new_option_is_checked() -> None:
    with pytest.raises(GpuschedError, match=r"--power -1\.0: must be a number, at least 0"):
        MoreOptions(power=-1.0).check()


def test_a_new_option_is_in_the_docs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(test_docs, "command", lambda name: verb)
    assert "Raise eigenvalues to the power X." in test_docs.command_block("esd")


def test_the_record_of_an_adapter_names_its_base() -> None:
    whole = AnalysisOptions(bins=50, device="cpu").as_record(source_model="acme/a", relation="finetune")
    assert whole == AnalysisOptions(bins=50).as_record() and "device" not in whole
    merged = AnalysisOptions(bins=50).as_record(relation="LoRA")
    assert merged not in (whole, AnalysisOptions(bins=50).as_record(relation="adapter", source_model="acme/a"))


def test_options_may_be_written_with_underscores() -> None:
    from gpusched.cli.features.esd import esd

    context = esd.make_context("esd", ["--model_list", "a_b.csv", "--fix_fingers=xmin_mid", "--gpu_list", "0", "1"])
    assert (context.params["model_list"], context.params["fix_fingers"]) == ("a_b.csv", "xmin_mid")
