"""The record of the analysis of one model: the names of its files, and the test for a finished one. Reads no file.

`records/<stem>.json` is written after all other files of a model, so the files that it names are complete.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

CONVENTION = 1  # changes when the same weights give other numbers: no earlier result counts as done then

RECORDS = "records"
TABLES = "per_model_csv"
SPECTRA = "spectra"

_LONGEST_STEM = 240  # a file name has at most 255 bytes, suffix and temporary mark included

ADAPTER_RELATIONS = ("adapter", "lora", "peft")

# Characters that are encoded: all unusual ones, and a hyphen that could be part of "--".
_CODED = re.compile(r"[^\w.+=@,/-]|(?:^|(?<=/))\.|-(?=[-/])|(?<=[-/])-|^-|-$", re.ASCII)
_CODE = re.compile(r"(?:%[0-9A-F]{2})+")


def file_stem(name: str) -> str:
    """Return the name of a model as a file name without suffix: `a/b` -> `a--b`, different for each model.

    Ambiguous and unsafe characters are percent-encoded. Raises ValueError for an empty or overlong name.
    """
    stem = _CODED.sub(lambda match: _encoded(match[0]), name).replace("/", "--")
    if not name or len(stem) > _LONGEST_STEM:
        raise ValueError(f"{name[:60]!r} is {'empty' if not name else 'too long'} for the name of a model")
    return stem


def model_name(stem: str) -> str:
    """Return the name of the model from the result of `file_stem`."""
    return _CODE.sub(lambda match: _decoded(match[0]), stem.replace("--", "/"))


def _encoded(text: str) -> str:
    return "".join(f"%{byte:02X}" for byte in text.encode("utf-8", "surrogateescape"))


def _decoded(code: str) -> str:
    return bytes.fromhex(code.replace("%", "")).decode("utf-8", "surrogateescape")


def is_done(record: Mapping[str, Any], *, revision: str, options: Mapping[str, Any]) -> bool:
    """Return True if the model was analysed with these options, at this revision, by this convention."""
    return (
        record.get("success") is True
        and record.get("convention") == CONVENTION
        and record.get("revision", "") == revision
        and record.get("options") == dict(options)
    )
