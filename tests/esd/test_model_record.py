"""Names of models as file names: reversible, safe, and what counts as done."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpusched.esd.model_record import CONVENTION, file_stem, is_of, model_name

NAMES = st.text(st.sampled_from("a.B-_%/ é9~한"), min_size=1, max_size=24)


@given(NAMES)
def test_a_name_comes_back(name: str) -> None:
    stem = file_stem(name)
    assert model_name(stem) == name
    assert stem.isascii() and "/" not in stem and not stem.startswith(".")


@pytest.mark.parametrize(
    ("name", "stem"),
    [
        ("acme/tiny", "acme--tiny"),
        ("gpt2", "gpt2"),
        ("acme/tiny-lora_v1.5", "acme--tiny-lora_v1.5"),
        ("a--b", "a%2D%2Db"),
        ("a-/b", "a%2D--b"),
        ("../x", "%2E.--x"),
    ],
)
def test_how_a_name_looks(name: str, stem: str) -> None:
    assert file_stem(name) == stem


@pytest.mark.parametrize("name", ["", "x" * 300])
def test_a_name_that_makes_no_file_name(name: str) -> None:
    with pytest.raises(ValueError, match="the name of a model"):
        file_stem(name)


def test_the_same_analysis_is_by_convention_options_and_revision() -> None:
    record = {"convention": CONVENTION, "revision": "main", "options": {"bins": 100}}
    assert is_of(record, revision="main", options={"bins": 100})
    assert not is_of(record, revision="v2", options={"bins": 100})
    assert not is_of(record, revision="main", options={"bins": 50})
    assert not is_of({**record, "convention": CONVENTION + 1}, revision="main", options={"bins": 100})
    assert not is_of({}, revision="", options={})
