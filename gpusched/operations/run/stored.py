"""The settings that `gpusched set` has stored for a queue, and those by which it was dispatched last."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from gpusched.config.layers import LoadedSettings
from gpusched.config.settings import SETTINGS, Settings, show
from gpusched.host.store import Store, meta_table

EXPLICIT = ("flag", "env")  # origins that count more than what is stored


def read_set(store: Store) -> dict[str, Any]:
    """Return the settings that are stored for this queue, by name."""
    stored = json.loads(meta_table.read(store, "set") or "{}")
    return {name: value for name, value in stored.items() if name in SETTINGS}


def with_stored(loaded: LoadedSettings, store: Store) -> Settings:
    """Return the settings with those that are stored for this queue, unless they are stated now."""
    return loaded.settings.with_values(
        {name: value for name, value in read_set(store).items() if not loaded.origins[name].startswith(EXPLICIT)}
    )


def stored_settings(store: Store) -> Settings:
    """Return the settings by which this queue was dispatched last, as far as it keeps them."""
    return Settings.from_json(meta_table.read(store, "settings") or "{}").with_values(read_set(store))


def set_words(values: Mapping[str, Any]) -> list[str]:
    """Return stored settings as a person types them."""
    return [f"{name.replace('_', '-')}={show(SETTINGS[name], value)}" for name, value in values.items()]
