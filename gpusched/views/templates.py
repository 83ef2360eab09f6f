"""The templates of pages, in which Jinja escapes all text, and the files that lie beside them."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from importlib import resources

from jinja2 import DictLoader, Environment, StrictUndefined

from gpusched.common.text import clean


def read_files(package: str, *names: str) -> dict[str, str]:
    """Return the texts of these files of a package, to be read at its import: it may be replaced before a run ends."""
    return {name: resources.files(package).joinpath(name).read_text("utf-8") for name in names}


def environment(templates: Mapping[str, str]) -> Environment:
    """Return what renders these templates. All text is escaped; a name that is not known is an error."""
    made = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    made.loader = DictLoader(templates)
    made.filters["clean"] = clean
    return made


def content_hash(text: str) -> str:
    """Return what a policy calls a script or a style by."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
