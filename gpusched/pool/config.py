"""Pools in a YAML file: the worker and the items of each, and the block `optimization:` with its options.

A file describes one pool by its own keys, or several ones by name below `pools:`, for which its own keys are defaults.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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

BLOCK, POOLS = "optimization", "pools"
_OTHER_NAMES = {"save_checkpoint_every": "checkpoint_every"}  # keys of the block, and the options that they are
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


def choose_pools(path: str, scripts: Sequence[str] = ()) -> dict[str, dict[str, Any]]:
    """Return the keys of each pool of a file by its name, "" for the only one; of `scripts`, if some are named.

    What the file states for all of them is in each. Raises GpuschedError for a name that the file does not have.
    """
    document = read_config(path)
    pools = document.pop(POOLS, None) or {"": {}}
    if not isinstance(pools, dict) or not all(isinstance(own, dict) for own in pools.values()):
        raise GpuschedError("must hold pools by name", where=f"{clean(path)}: {POOLS}", hint="captions: {worker: …}")
    for name in scripts:
        if name not in pools or not name:
            hint = f"it describes {', '.join(map(clean, pools))}" if any(pools) else "it describes one pool, unnamed"
            raise GpuschedError(f"describes no pool {clean(name)!r}", where=clean(path), hint=hint)
    chosen = {name: own for name, own in pools.items() if not scripts or name in scripts}
    _check_forms(_place(path), document)
    for name, own in chosen.items():
        _check_forms(_place(path, name), own)
    return {
        name: {**document, **own, BLOCK: {**(document.get(BLOCK) or {}), **(own.get(BLOCK) or {})}}
        for name, own in chosen.items()
    }


def _place(path: str, name: str = "") -> str:
    return f"{clean(path)}: {POOLS}: {clean(name)}: " if name else f"{clean(path)}: "


def _check_forms(place: str, keys: Mapping[str, Any]) -> None:
    """Raise GpuschedError for a key of ours whose value is no text, or no mapping."""
    for key in (BLOCK, *_OWN):
        form = dict if key in (BLOCK, "settings") else str
        if not isinstance(keys.get(key) or form(), form):
            problem = "must be text" if form is str else "must hold names, each with a value"
            raise GpuschedError(problem, where=f"{place}{key}")


def read_pools(
    path: str, scripts: Sequence[str], stated: Mapping[str, Any], loaded: LoadedSettings
) -> dict[str, tuple[PoolOptions, LoadedSettings]]:
    """Return the options and settings of each pool that `choose_pools` finds.

    What is `stated`, or set in any other way, counts more than the file.
    """
    pools = choose_pools(path, scripts)
    return {name: _with_values(document, _place(path, name), stated, loaded) for name, document in pools.items()}


def _with_values(
    document: Mapping[str, Any], place: str, stated: Mapping[str, Any], loaded: LoadedSettings
) -> tuple[PoolOptions, LoadedSettings]:
    """Return the options and the settings of one pool; those that are `stated`, or set in any other way, count more."""
    values: dict[str, Any] = {name: document[name] for name in _OWN if name in document}
    values["set"] = tuple(f"{name}={value}" for name, value in (values.pop("settings", "") or {}).items())
    rows = {each.name: each for each in options_of(PoolOptions)}
    settings = loaded.settings
    for key, text in document[BLOCK].items():
        where = f"{place}{BLOCK}: {key}"
        try:
            if key == "use_adaptive_workers":
                values["inline"] = not switch(text)
            elif key == "wandb" and isinstance(text, dict):
                values["wandb"] = text.get("project", "gpusched") if switch(text.get("enabled", "false")) else ""
            elif (name := _OTHER_NAMES.get(key, key)) in rows:
                values[name] = _typed(text, rows[name].default)
            elif key in SETTINGS:
                if loaded.origins[key] == "default":
                    settings = settings.with_values({key: SETTINGS[key].parse(text)})
            else:
                close = nearest(key, [*rows, *SETTINGS])
                raise GpuschedError("is unknown here", where=where, hint=f"did you mean {close!r}?" if close else "")
        except ValueError as error:
            raise GpuschedError(str(error), where=where) from None
    return PoolOptions(**{**values, **stated}), loaded._replace(settings=settings)


def _typed(text: Any, default: Any) -> Any:
    """Return a value of the type that the option has."""
    if not isinstance(text, str) or "${" in text:
        raise ValueError("must be a value, not a list, a map or a reference")
    if isinstance(default, bool):
        return switch(text)
    try:
        return type(default)(text)
    except ValueError:
        raise ValueError(f"must be a whole number, not {text!r}") from None


def _plain(node: Any) -> Any:
    if kind(node) == "map":
        return {str(_plain(key)): _plain(value) for key, value in node.value}
    return [_plain(each) for each in node.value] if kind(node) == "list" else node.value
