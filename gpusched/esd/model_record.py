"""The record of the analysis of one model: the names of its files, and the test for a finished one.

`records/<stem>.json` is written after all other files of a model, so the files that it names are complete.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

from gpusched.common.file_identity import first_changed
from gpusched.common.files import read_json_object

LEAST_COVERAGE = 0.5  # of the elements of its layers; a model with less is partial
# CONVENTION changes when the same weights may give other numbers; results of READABLE ones stay done (old_rules.py).
CONVENTION = 2
READABLE = (1, 2)

RECORDS = "records"
TABLES = "per_model_csv"
SPECTRA = "spectra"
PLOTS = "plots"
MOST_FIGURES = 100  # of single layers, of one model
SHUFFLED = " (shuffled)"  # behind a layer's name among the spectra: that of its entries in random order

_LONGEST_STEM = 240  # a file name has at most 255 bytes, suffix and temporary mark included

ADAPTER_RELATIONS = ("adapter", "lora", "peft")

# Characters that are encoded: all unusual ones, and a hyphen that could be part of "--".
_CODED = re.compile(r"[^\w.+=@,/-]|(?:^|(?<=/))\.|-(?=[-/])|(?<=[-/])-|^-|-$", re.ASCII)


def file_stem(name: str) -> str:
    """Return the name of a model as a file name without suffix: `a/b` -> `a--b`, different for each model.

    Ambiguous and unsafe characters are percent-encoded. Raises ValueError for an empty or overlong name.
    """
    stem = _CODED.sub(_encoded, name).replace("/", "--")
    if not name or len(stem) > _LONGEST_STEM:
        raise ValueError(f"{name[:60]!r} is {'empty' if not name else 'too long'} for the name of a model")
    return stem


def model_name(stem: str) -> str:
    """Return the name of the model from the result of `file_stem`."""
    return unquote(stem.replace("--", "/"), errors="surrogateescape")


def layer_picture(stem: str, layer: str) -> str:
    """Return the file name of the figure of one layer, without suffix."""
    return f"{stem}-layer-{file_stem(layer)}"


def _encoded(match: re.Match[str]) -> str:
    return "".join(f"%{byte:02X}" for byte in match[0].encode("utf-8", "surrogateescape"))


def read_record(output: str, stem: str) -> dict[str, Any]:
    """Return the record of a model in an output directory; empty if there is none that can be read."""
    return read_json_object(f"{output}/{RECORDS}/{stem}.json")


def is_whole(output: str, stem: str, record: Mapping[str, Any]) -> bool:
    """Return True for a record of success whose table is there, with the size that the record states."""
    try:
        size = os.stat(f"{output}/{TABLES}/{stem}.csv").st_size
    except OSError:
        return False
    return record.get("success") is True and size == record["csv"]["size"]


def is_of(record: Mapping[str, Any], *, revision: str, options: Mapping[str, Any]) -> bool:
    """Return True if the record is of an analysis with these options, at this revision, by a readable convention."""
    expected = {"revision": revision, "options": options}
    return record.get("convention") in READABLE and all(record.get(key) == value for key, value in expected.items())


def changed_file(record: Mapping[str, Any], *, contents: bool = False) -> str:
    """Return the path of a file of the model that has changed since it was analysed; "" if there is none."""
    return first_changed(record.get("files", ()), contents=contents)
