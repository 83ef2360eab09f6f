"""A pool in a YAML file: its worker, its items, and the block `optimization:` with its options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gpusched.common.errors import GpuschedError
from gpusched.common.option_table import options_of
from gpusched.common.quantities import nearest
from gpusched.common.text import clean
from gpusched.config.layers import LoadedSettings
from gpusched.config.settings import SETTINGS
from gpusched.config.values import switch
from gpusched.config.yaml_text import InvalidYaml, compose, kind
from gpusched.pool.options import PoolOptions

BLOCK = "optimization"
_OWN = ("worker", "items", "output_dir", "command", "settings")  # beside the block; other keys are somebody else's


def read_config(path: str) -> dict[str, Any]:
    """Return the document as text, lists and dicts. Raises GpuschedError if it cannot be read."""
    try:
        with open(path, "rb") as file:
            root = compose(file.read())
    except (OSError, InvalidYaml) as error:
        raise GpuschedError(getattr(error, "strerror", None) or str(error), where=clean(path)) from None
    document = _plain(root) if root is not None else {}
    if not isinstance(document, dict):
        raise GpuschedError("holds no keys", where=clean(path), hint="worker: captions.py:Caption, and so on")
    return document


def with_config(path: str, stated: Mapping[str, Any], loaded: LoadedSettings) -> tuple[PoolOptions, LoadedSettings]:
    """Return the options and the settings of a file; those that are `stated`, or set in any other way, count more."""
    document = read_config(path)
    values: dict[str, Any] = {name: document[name] for name in _OWN if name in document}
    values["set"] = tuple(f"{name}={value}" for name, value in values.pop("settings", {}).items())
    rows = {each.key or each.name: each for each in options_of(PoolOptions)}
    settings = loaded.settings
    for key, text in (document.get(BLOCK) or {}).items():
        where = f"{clean(path)}: {BLOCK}: {key}"
        try:
            if key == "use_adaptive_workers":
                values["inline"] = not switch(text)
            elif key in rows:
                values[rows[key].name] = _typed(text, rows[key].default)
            elif key in SETTINGS:
                if loaded.origins[key] == "default":
                    settings = settings.with_values({key: SETTINGS[key].parse(text)})
            else:
                close = nearest(key, [*rows, *SETTINGS])
                raise GpuschedError("is unknown here", where=where, hint=f"did you mean {close!r}?" if close else "")
        except ValueError as error:
            raise GpuschedError(str(error), where=where) from None
    return PoolOptions(**{**values, **stated}), replace(loaded, settings=settings)


def _typed(text: Any, default: Any) -> Any:
    """Return a value of the type that the option has."""
    if not isinstance(text, str) or "${" in text:
        raise ValueError("must be a value, not a list, a map or a reference")
    if isinstance(default, bool):
        return switch(text)
    return type(default)(text)


def _plain(node: Any) -> Any:
    if kind(node) == "map":
        return {str(_plain(key)): _plain(value) for key, value in node.value}
    return [_plain(each) for each in node.value] if kind(node) == "list" else node.value
