"""What a job says of itself, from keys and values to Attributes and back.

Reads no command and knows no other job: whether a name is taken or missing is seen where jobs are collected.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from functools import lru_cache
from typing import Any

from gpusched.common.quantities import format_duration, format_size, nearest, parse_duration, parse_size
from gpusched.common.text import clean
from gpusched.core.model import MIB, NO_ATTRIBUTES, Attributes, Dependency, DependencyKind
from gpusched.lists.blocks import Word
from gpusched.lists.lint import Fault

ENV = "env."

Stated = MutableMapping[str, Any]  # key -> value, parsed

_NAME = re.compile(r"\w[\w.+=@:/-]*")
_NAME_IS = "letters, digits and . _ - + = @ : / without blanks, and not digits alone"
_LONGEST_NAME = 120
_WHOLE = re.compile(r"[+-]?[0-9]{1,9}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OURS = re.compile(r"CUDA_VISIBLE_DEVICES|CUDA_DEVICE_ORDER|NVIDIA_VISIBLE_DEVICES|GPUSCHED_\w*")
_KINDS = {kind.value: kind for kind in DependencyKind}
_SMALL_BYTES = 100 * MIB  # less than a CUDA context takes


def _whole(text: str) -> int:
    if not _WHOLE.fullmatch(text):
        raise ValueError("a whole number")
    return int(text)


def _count(text: str) -> int:
    if not _WHOLE.fullmatch(text) or int(text) < 0:
        raise ValueError("a whole number, at least 0")
    return int(text)


def _items(text: str) -> int:
    if not _WHOLE.fullmatch(text) or int(text) < 1:
        raise ValueError("a whole number, at least 1")
    return int(text)


def _time(text: str) -> float:
    seconds = parse_duration(text)
    if seconds == 0:
        raise ValueError("more than 0")
    return seconds


def _name(text: str) -> str:
    name = text if text.isascii() else unicodedata.normalize("NFC", text)
    if not _NAME.fullmatch(name) or name.isdigit():
        raise ValueError(_NAME_IS)
    if len(name) > _LONGEST_NAME:
        raise ValueError(f"at most {_LONGEST_NAME} characters")
    return name


def _names(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(map(_name, text.split(","))))


def _references(text: str) -> tuple[str, ...]:
    """Names, tags and ids."""
    parts = text.split(",")
    return tuple(dict.fromkeys(str(int(part)) if _id(part) else _name(part) for part in parts))


def _id(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 16


def _model(text: str) -> str:
    if not text.strip() or not text.isprintable() or len(text) > _LONGEST_NAME:
        raise ValueError("a GPU's name or a part of it, such as A100")
    return text.strip()


_TEXTS: Mapping[str, Callable[[str], object]] = {
    "gpus": _count,
    "mem": parse_size,
    "time": _time,
    "retries": _count,
    "name": _name,
    **dict.fromkeys(_KINDS, _references),
    "prio": _whole,
    "tag": _names,
    "gpu-model": _model,
    "items": _items,
}
KEYS = (*_TEXTS, "cwd")
_KNOWN = frozenset(KEYS)
_KEYS_ARE = f"the keys: {', '.join(KEYS)}, env.NAME"


@lru_cache(maxsize=1024)  # few of the words of a long list differ
def parse_value(key: str, value: bytes) -> object:
    """The value of a key that exists. ValueError says what would be right."""
    if key == "cwd" or key.startswith(ENV):
        if b"\0" in value or (key == "cwd" and not value):
            raise ValueError("a directory" if key == "cwd" else "without a NUL byte")
        return value
    try:
        return _TEXTS[key](value.decode())
    except UnicodeDecodeError:
        raise ValueError("UTF-8 text") from None


def wrong_key(key: str) -> tuple[str, str] | None:
    """What is wrong with a key, as code and message; None: it is one."""
    if not key.startswith(ENV):
        if key in _KNOWN:
            return None
        meant = "env.NAME" if key == "env" else nearest(key, (*KEYS, "env.NAME"))
        return "attribute-key", f"there is no attribute {key!r}" + (f"; did you mean {meant}?" if meant else "")
    name = key[len(ENV) :]
    if not _VARIABLE.fullmatch(name):
        return "attribute-key", f"{name!r} is no name of a variable: letters, digits and _"
    if _OURS.fullmatch(name):
        return "attribute-own", f"{name} is set by gpusched itself: leave it out (gpus=0 makes a job without a GPU)"
    return None


def state(words: Iterable[Word], stated: Stated, *, directive: bool = False) -> list[Fault]:
    """Put what the words say into `stated`, which holds the defaults; a bare `key=` takes a default back."""
    faults: list[Fault] = []
    seen: set[str] = set()
    for word in words:
        key = word.key
        if key not in _KNOWN and (wrong := wrong_key(key)) is not None:
            faults.append(Fault(wrong[0], "error", word.at, wrong[1], _KEYS_ARE, False))
        elif key in seen:
            message = f"{key} stands here twice" + (f": {key}=a,b" if _TEXTS.get(key) in (_names, _references) else "")
            faults.append(Fault("attribute-twice", "error", word.at, message, "", False))
        elif directive and key == "name":
            message = "a name is for one job, and a directive is for all the lines below"
            faults.append(Fault("attribute-name", "error", word.at, message, "tag=… is for many", False))
        elif word.bare:
            if key == "name" or stated.pop(key, None) is None:
                faults.append(_takes_nothing(key, word.at))
        else:
            try:
                stated[key] = value = parse_value(key, word.value)
            except ValueError as error:
                faults.append(wrong_value(key, word.value, error, word.at + len(key) + 1))
            else:
                if (doubt := doubtful(key, word.value, value, word.at)) is not None:
                    faults.append(doubt)
        seen.add(key)
    return faults


def wrong_value(key: str, value: bytes, error: ValueError, at: int) -> Fault:
    shown = clean(value[:60].decode("utf-8", "replace"))
    message = f"{key} is {shown!r}, but must be {error}"
    if value.endswith(b","):
        message += "; blanks part the attributes, not commas"
    return Fault("attribute-value", "error", at, message, "", False)


def _takes_nothing(key: str, at: int) -> Fault:
    if key == "name":
        return Fault("attribute-value", "error", at, "the name is empty", "", False)
    message = f"{key}= takes a default back, and there is none"
    hint = f"{key}='' sets it to nothing" if key.startswith(ENV) else "leave it out"
    return Fault("attribute-bare", "warning", at, message, hint, False)


def doubtful(key: str, text: bytes, value: object, at: int) -> Fault | None:
    """What a careful colleague would ask about a value that can be right."""
    if key != "mem" or not isinstance(value, int) or value >= _SMALL_BYTES:
        return None
    message = f"mem {text.decode()} is {value / MIB:g} MiB, which is less than a CUDA context alone takes"
    return Fault("attribute-mem", "warning", at, message, "without a unit it counts MiB: 18G is 18 GiB", False)


def make(stated: Mapping[str, Any]) -> Attributes:
    """The attributes of one job. A job without GPUs has neither a budget on them nor a wish for a model."""
    if not stated:
        return NO_ATTRIBUTES
    get = stated.get
    on_gpu = get("gpus") != 0
    return Attributes(
        gpus=get("gpus"),
        mem_bytes=get("mem") if on_gpu else None,
        time_limit_s=get("time"),
        retries=get("retries"),
        name=get("name", ""),
        tags=get("tag", ()),
        prio=get("prio", 0),
        cwd=get("cwd"),
        env=tuple([(key[4:].encode(), value) for key, value in stated.items() if key[:4] == ENV]),
        gpu_model=get("gpu-model", "") if on_gpu else "",
        after=tuple([Dependency(kind, stated[key]) for key, kind in _KINDS.items() if key in stated]),
        items=get("items", 0),
    )


# ---- and back --------------------------------------------------------------------------------------

_SAFE = re.compile(rb"[\w@%+=:,./-]+")


def words_of(attributes: Attributes) -> list[tuple[str, bytes]]:
    """Keys and values, as they would be written, without quotes."""
    a = attributes
    words: list[tuple[str, bytes]] = []
    if a.name:
        words.append(("name", a.name.encode()))
    if a.gpus is not None:
        words.append(("gpus", b"%d" % a.gpus))
    if a.mem_bytes is not None:
        words.append(("mem", format_size(a.mem_bytes).encode()))
    if a.gpu_model:
        words.append(("gpu-model", a.gpu_model.encode()))
    if a.time_limit_s is not None:
        words.append(("time", format_duration(a.time_limit_s).encode()))
    if a.retries is not None:
        words.append(("retries", b"%d" % a.retries))
    if a.prio:
        words.append(("prio", b"%d" % a.prio))
    if a.tags:
        words.append(("tag", ",".join(a.tags).encode()))
    words += ((each.kind.value, ",".join(each.refs).encode()) for each in a.after)
    if a.items:
        words.append(("items", b"%d" % a.items))
    if a.cwd is not None:
        words.append(("cwd", a.cwd))
    words += ((ENV + name.decode(), value) for name, value in a.env)
    return words


def render(attributes: Attributes) -> bytes:
    """The block that says the same; empty for attributes that say nothing."""
    words = [key.encode() + b"=" + _quoted(value) for key, value in words_of(attributes)]
    return b"[" + b" ".join(words) + b"]" if words else b""


def _quoted(value: bytes) -> bytes:
    return value if _SAFE.fullmatch(value) else b"'" + value.replace(b"'", b"'\\''") + b"'"
