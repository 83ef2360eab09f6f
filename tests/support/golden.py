"""Output compared with a stored text in tests/golden/. `GPUSCHED_BLESS=1` (`make bless`) rewrites the texts."""

from __future__ import annotations

import os
from pathlib import Path

from tests.support.paths import TESTS

FOLDER = TESTS / "golden"


def golden(name: str, text: str, *, home: Path | None = None) -> None:
    """Compare `text` with the stored one; `home`, which differs from run to run, stands there as /work."""
    if home is not None:
        text = text.replace(str(home), "/work")
    path = FOLDER / f"{name}.txt"
    if os.environ.get("GPUSCHED_BLESS"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, "utf-8")
        return
    assert path.exists(), f"there is no {path}: run 'make bless' and look at what it writes"
    assert text == path.read_text("utf-8"), f"differs from {path}: run 'make bless' and look at what changes"
