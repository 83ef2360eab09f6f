"""The record that an analysis leaves of one model: its file names, and what counts as done. Reads no file.

`records/<stem>.json` is written last of all that a model leaves, so that what it names is whole.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

CONVENTION = 1  # of the numbers: another one makes other numbers of the same weights, and nothing made before is done

RECORDS = "records"
TABLES = "per_model_csv"
SPECTRA = "spectra"

_LONGEST_STEM = 240  # a file name has at most 255 bytes, suffix and temporary mark included

ADAPTER_RELATIONS = ("adapter", "lora", "peft")

# What stands for itself: a hyphen only where it cannot be taken for a part of "--".
_CODED = re.compile(r"[^\w.+=@,/-]|(?:^|(?<=/))\.|-(?=[-/])|(?<=[-/])-|^-|-$", re.ASCII)
_CODE = re.compile(r"(?:%[0-9A-F]{2})+")


def file_stem(name: str) -> str:
    """The name of a model as a file name without suffix: `a/b` -> `a--b`, and no two names have the same.

    What would make it ambiguous or unsafe is percent-encoded. ValueError for an empty or overlong name.
    """
    stem = _CODED.sub(lambda match: _encoded(match[0]), name).replace("/", "--")
    if not name or len(stem) > _LONGEST_STEM:
        raise ValueError(f"{name[:60]!r} is {'empty' if not name else 'too long'} for the name of a model")
    return stem


def model_name(stem: str) -> str:
    """The name that `file_stem` made this of."""
    return _CODE.sub(lambda match: _decoded(match[0]), stem.replace("--", "/"))


def _encoded(text: str) -> str:
    return "".join(f"%{byte:02X}" for byte in text.encode("utf-8", "surrogateescape"))


def _decoded(code: str) -> str:
    return bytes.fromhex(code.replace("%", "")).decode("utf-8", "surrogateescape")


def is_done(record: Mapping[str, Any], *, revision: str, options: Mapping[str, Any]) -> bool:
    """Was this model analysed to its end, by these options and this convention, at this revision?"""
    return (
        record.get("success") is True
        and record.get("convention") == CONVENTION
        and record.get("revision", "") == revision
        and record.get("options") == dict(options)
    )
