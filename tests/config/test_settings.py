"""The settings table and its parsers."""

from __future__ import annotations

from dataclasses import fields
from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpusched.common.quantities import format_duration, parse_duration, parse_moment
from gpusched.config import layers
from gpusched.config import settings as config
from gpusched.config.settings import SETTINGS, Settings

# ---- durations ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90),
        ("90s", 90),
        ("90m", 5400),
        ("2h", 7200),
        ("1d", 86400),
        ("2:00:00", 7200),
        ("01:30:05", 5405),
        ("1-12:00:00", 36 * 3600),
        ("1h30m", 5400),
        ("1h 30m", 5400),
        ("1.5h", 5400),
        ("0.25", 0.25),
        ("2H", 7200),
        ("1d2h3m4s", 93784),
        (" 5 ", 5),
        ("0", 0),
    ],
)
def test_a_duration_is_read(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "-1",
        "1:30",
        "1-12:30",
        "1:2:3:4",
        "-1:00:00",
        "30m1h",
        "5x",
        "h",
        "1e3",
        "nan",
        "inf",
        "9" * 400,
        "٣",
        "1h1h",
        "4000d",
    ],
)
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"seconds|years"):
        parse_duration(text)


@given(st.integers(0, 10 * 365 * 86400))
def test_a_duration_survives_its_own_text(seconds: int) -> None:
    assert parse_duration(format_duration(seconds)) == seconds


@given(st.integers(1, 10**8))
def test_a_fraction_of_a_second_survives_its_own_text(milliseconds: int) -> None:
    assert parse_duration(format_duration(milliseconds / 1000)) == pytest.approx(milliseconds / 1000)


# ---- lists of GPUs ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "ahead", "ago"),  # as seen at noon of the 25th
    [
        ("22:30", "11-25 22:30", "11-24 22:30"),
        ("9:30", "11-26 09:30", "11-25 09:30"),
        ("2h", "11-25 14:00", "11-25 10:00"),
        ("yesterday", "11-24 00:00", "11-24 00:00"),
        ("Tomorrow", "11-26 00:00", "11-26 00:00"),
        ("2026-11-01", "11-01 00:00", "11-01 00:00"),
        ("2026-12-24T08:00", "12-24 08:00", "12-24 08:00"),
    ],
)
def test_moments_are_read_alike_ahead_and_ago(text: str, ahead: str, ago: str) -> None:
    now = datetime(2026, 11, 25, 12).timestamp()
    moments = [parse_moment(text, now), parse_moment(text, now, is_past=True)]
    assert [datetime.fromtimestamp(each).strftime("%m-%d %H:%M") for each in moments] == [ahead, ago]


@pytest.mark.parametrize("text", ["", "soon", "25:00", "+x", "2026-13-01"])
def test_what_is_no_moment_is_refused_with_the_valid_forms(text: str) -> None:
    for is_past, form in ((False, "tomorrow"), (True, "yesterday")):
        with pytest.raises(ValueError, match=form):
            parse_moment(text, 1.8e9, is_past=is_past)


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("0", "0"),
        ("0,1,4-7", "0,1,4-7"),
        ("0, 2", "0,2"),
        ("4 5 6 7", "4,5,6,7"),
        ("GPU-1a2b,MIG-9/1/0", "GPU-1a2b,MIG-9/1/0"),
        ("0,,1,", "0,1"),
    ],
)
def test_a_list_of_gpus_is_read(text: str, tokens: str) -> None:
    assert SETTINGS["gpu_list"].parse(text) == tokens


@pytest.mark.parametrize("text", ["", ",", "a", "7-4", "-1", "0;1", "0-", "GPU-"])
def test_what_is_no_list_of_gpus_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="a list such as"):
        SETTINGS["gpu_list"].parse(text)


# ---- the table -------------------------------------------------------------------------------------


def test_the_defaults_are_those_that_are_promised() -> None:
    s = Settings()
    assert (s.max_gpus, s.gpu_mem_threshold, s.max_checks, s.poll_interval) == (None, 500, 10, 2.0)
    assert (s.free_when, s.gpus_per_job, s.cpu_jobs, s.retries, s.grace) == ("auto", 1, 2, 0, 10.0)
    assert (s.visible_devices, s.shell, s.leftovers, s.time_limit) == ("auto", "bash", "wait", None)
    assert s.gpus_at_once == 4


@pytest.mark.parametrize(("max_gpus", "per_job", "at_once"), [(None, 1, 4), (None, 6, 6), (2, 1, 2), (None, 0, 4)])
def test_four_gpus_at_once_or_what_one_job_needs(max_gpus: int | None, per_job: int, at_once: int) -> None:
    assert Settings(max_gpus=max_gpus, gpus_per_job=per_job).gpus_at_once == at_once


@pytest.mark.parametrize("name", SETTINGS)
def test_each_default_can_be_written_down_and_read_back(name: str) -> None:
    setting = SETTINGS[name]
    if setting.default is not None:
        assert setting.parse(config.show(setting, setting.default)) == setting.default
    assert setting.help[0].isupper() and not setting.help.endswith(".")
    assert bool(setting.metavar) != setting.is_switch


def test_the_table_and_the_value_have_the_same_names() -> None:
    assert list(SETTINGS) == [f.name for f in fields(Settings)]
    assert not {s.env for s in SETTINGS.values()} & layers.NOT_SETTINGS


def test_each_option_of_a_run_is_a_setting_and_stands_in_one_group() -> None:
    names = [name for lists in config.OPTIONS.values() for each in lists for name in each.split()]
    assert set(names) <= SETTINGS.keys() and len(names) == len(set(names))
