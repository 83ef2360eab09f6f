"""Attributes that a job states: from keys and values to `Attributes`, and back to text.

Reads no command and knows no other job: names are compared where jobs are collected.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Mapping, MutableMapping
from functools import lru_cache
from typing import Any, NamedTuple

from gpusched.common import look_alikes
from gpusched.common.quantities import format_duration, format_memory, format_size, parse_memory, parse_size
from gpusched.common.text import clean
from gpusched.config.values import duration, one_of, switch, whole
from gpusched.core.jobs.job import MIB, NO_ATTRIBUTES, Attributes, Dependency, DependencyKind
from gpusched.lists.blocks import AttributeBlock
from gpusched.lists.finding_table import fault, suggest
from gpusched.lists.findings import Finding

ENV = "env."

AttributeValues = MutableMapping[str, Any]  # key -> value, parsed

_NAME = r"\w[\w.+=@:/-]*"
_NAME_FORM = "letters, digits and . _ - + = @ : / without blanks, and not digits alone"
_LONGEST_NAME = 120
_ID = r"[0-9]{1,15}"
_VARIABLE = r"[A-Za-z_][A-Za-z0-9_]*"
_OURS = r"CUDA_VISIBLE_DEVICES|CUDA_DEVICE_ORDER|NVIDIA_VISIBLE_DEVICES|GPUSCHED_\w*"
_KINDS = {kind.value: kind for kind in DependencyKind}
_SMALL_BYTES = 100 * MIB  # less than a CUDA context takes


def _name(text: str) -> str:
    name = text if text.isascii() else unicodedata.normalize("NFC", text)
    if not re.fullmatch(_NAME, name) or name.isdigit():
        raise ValueError(_NAME_FORM)
    if len(name) > _LONGEST_NAME:
        raise ValueError(f"at most {_LONGEST_NAME} characters")
    return name


def _names(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(map(_name, text.split(","))))


def _references(text: str) -> tuple[str, ...]:
    """Return names, tags and ids; an id has no leading zeros."""
    return tuple(
        dict.fromkeys(part.lstrip("0") or "0" if re.fullmatch(_ID, part) else _name(part) for part in text.split(","))
    )


def _model(text: str) -> str:
    if not text.strip() or not text.isprintable() or len(text) > _LONGEST_NAME:
        raise ValueError("a GPU's name or a part of it, such as A100")
    return text.strip()


class _Attribute(NamedTuple):
    """The field of Attributes that a key fills, and how its value is read and written."""

    field: str
    parse: Callable[[str], object]
    format: Callable[[Any], str] = str


_TABLE = {  # by key, in the order in which they are shown
    "name": _Attribute("name", _name),
    "gpus": _Attribute("gpus", whole(0)),
    "mem": _Attribute("mem_bytes", parse_memory, format_memory),
    "gpu-model": _Attribute("gpu_model", _model),
    "time": _Attribute("time_limit_s", duration(zero=False), format_duration),
    "retries": _Attribute("retries", whole(0)),
    "prio": _Attribute("prio", whole()),
    "tag": _Attribute("tags", _names, ",".join),
    "items": _Attribute("items", whole(1)),
    "cpus": _Attribute("cpus", whole(1)),
    "ram": _Attribute("ram_bytes", parse_size, format_size),
    "alone": _Attribute("alone", switch, lambda is_wanted: "yes" if is_wanted else "no"),
    "node": _Attribute("node", _name),
    "node-tag": _Attribute("node_tag", _name),
    "nodes": _Attribute("over_nodes", one_of("spread", "pack")),
    "cwd": _Attribute("cwd", str),  # kept as bytes
}
KEYS = (*_TABLE, *_KINDS)
FIELDS = {key: each.field for key, each in _TABLE.items()}
_KEY_SET = frozenset(KEYS)
_OF_SLURM = {
    "dependency": "after=JOB, or after-any, after-failed, after-ended",
    **dict.fromkeys(("gres", "gpus-per-task", "gpus-per-node"), "gpus=N"),
    **{"job-name": "name=NAME", "cpus-per-task": "cpus=N", "mem-per-gpu": "mem=SIZE", "partition": "tag=TAG"},
    **{"chdir": "cwd=DIR", "nice": "prio=N"},
}


@lru_cache(maxsize=1024)  # a long list repeats the same words
def parse_value(key: str, value: bytes) -> object:
    """Parse the value of a valid key. The text of a ValueError is the form that it must have."""
    if key == "cwd" or key.startswith(ENV):
        if b"\0" in value or (key == "cwd" and not value):
            raise ValueError("a text without a NUL byte, and a directory not empty")
        return value
    try:
        return _references(value.decode()) if key in _KINDS else _TABLE[key].parse(value.decode())
    except UnicodeDecodeError:
        raise ValueError("UTF-8 text") from None


def key_fault(key: str, at: int = 0) -> Finding | None:
    """Return the fault of a key; None for a valid one."""
    if key.startswith(ENV):
        name = key[len(ENV) :]
        if not re.fullmatch(_VARIABLE, name):
            return fault("attribute-key.variable", at, key=name)
        return fault("attribute-own", at, key=name) if re.fullmatch(_OURS, name) else None
    if key in _KEY_SET:
        return None
    keys = (*KEYS, "env.NAME")
    suggestion = f"; here it is {_OF_SLURM[key]}" if key in _OF_SLURM else suggest(key, keys)
    return fault("attribute-key", at, key=key, suggestion=suggestion, keys=", ".join(keys))


def state(block: AttributeBlock, values: AttributeValues, *, directive: bool = False) -> list[Finding]:
    """Put the words into `values`, which has the defaults; a bare `key=` removes a default. Return the faults."""
    faults: list[Finding] = []
    keys: set[str] = set()
    for word in block.words:
        problem = None if word.key in _KEY_SET else key_fault(word.key, word.at)
        if problem is None and word.key in keys:
            problem = fault("attribute-twice", word.at, key=word.key)
        elif problem is None and directive and word.key == "name":
            problem = fault("attribute-name", word.at)
        elif problem is None and not word.bare:
            problem = state_value(values, word.key, word.value, word.at, word.at + len(word.key) + 1)
        elif problem is None:
            values.pop(word.key, None)
        if problem is not None:
            faults.append(problem)
        keys.add(word.key)
    return faults if block.fault is None else [*faults, block.fault]


def state_value(values: AttributeValues, key: str, value: bytes, at: int = 0, value_at: int = 0) -> Finding | None:
    """Put the value of a valid key into `values`; return what is wrong with it, or a warning of a probable mistake."""
    try:
        values[key] = parsed = parse_value(key, value)
    except ValueError as error:
        text = clean(value[:60].decode("utf-8", "replace"))
        name = "attribute-value.comma" if value.endswith(b",") else "attribute-value"
        if look_alike := look_alikes.find(value.decode("utf-8", "replace"))[1]:
            name = "attribute-value.look-alike"
        return fault(name, value_at, key=key, value=text, form=error, look_alike=look_alike)
    return value_doubt(key, value, parsed, at)


def value_doubt(key: str, text: bytes, value: object, at: int = 0) -> Finding | None:
    """Return a warning about a valid value that is probably a mistake."""
    if key != "mem" or not isinstance(value, int) or not 0 <= value < _SMALL_BYTES:
        return None
    return fault("attribute-mem", at, text=text.decode(), mib=value / MIB)


def make(values: Mapping[str, Any]) -> Attributes:
    """Make the attributes of one job. A job without GPUs has no needs of GPUs."""
    if not values:
        return NO_ATTRIBUTES
    unused = ("mem", "gpu-model", "alone") if values.get("gpus") == 0 else ()
    return Attributes(
        **{field: values[key] for key, field in FIELDS.items() if key in values and key not in unused},
        env=tuple([(key[4:].encode(), value) for key, value in values.items() if key[:4] == ENV]),
        after=tuple([Dependency(kind, values[key]) for key, kind in _KINDS.items() if key in values]),
    )


def with_defaults(own: Attributes, defaults: Attributes) -> Attributes:
    """Return the attributes of a job, and those of `defaults` that it does not state; it gets the variables of both."""
    if defaults == NO_ATTRIBUTES:  # of most submissions, which may be long
        return own
    stated = {name: value for name, value in own._asdict().items() if value != getattr(NO_ATTRIBUTES, name)}
    return defaults._replace(**{**stated, "env": tuple({**dict(defaults.env), **dict(own.env)}.items())})


# ---- and back --------------------------------------------------------------------------------------

_SAFE = rb"[\w@%+=:,./-]+"


def value_text(key: str, value: Any) -> str:
    """Return the value of a key as a user writes it, without quotes."""
    if key in _KINDS:
        return ",".join(value)
    return _TABLE[key].format(value) if key in _TABLE else str(value)


def words_of(attributes: Attributes) -> list[tuple[str, bytes]]:
    """Return keys and values as a user writes them, without quotes."""
    words = []
    for key, field in FIELDS.items():
        value = getattr(attributes, field)
        if value != getattr(NO_ATTRIBUTES, field) and key != "cwd":
            words.append((key, value_text(key, value).encode()))
    words += [(each.kind.value, ",".join(each.refs).encode()) for each in attributes.after]
    if attributes.cwd is not None:
        words.append(("cwd", attributes.cwd))
    return words + [(ENV + name.decode(), value) for name, value in attributes.env]


def render(attributes: Attributes) -> bytes:
    """Return the block `[…]` of these attributes; empty if none is stated."""
    words = [key.encode() + b"=" + _quoted(value) for key, value in words_of(attributes)]
    return b"[" + b" ".join(words) + b"]" if words else b""


def _quoted(value: bytes) -> bytes:
    return value if re.fullmatch(_SAFE, value) else b"'" + value.replace(b"'", b"'\\''") + b"'"
