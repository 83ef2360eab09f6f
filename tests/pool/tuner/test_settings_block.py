"""The block of a YAML file that is replaced, and all that stays."""

from __future__ import annotations

import pytest
import yaml

from gpusched.common.errors import GpuschedError
from gpusched.pool.tuner.settings_block import replace_block

pytest.importorskip("ruamel.yaml")

VALUES = {"max_workers_per_gpu": 3, "batch_size": 64, "wandb": {"enabled": False}}
FILE = """\
# how the captions are made
worker: "captions.py:Caption"   # quoted
root: &root ${HOME}/x
optimization:   # by hand
  # twice the cores
  # measured 2020-01-01 on box
  max_workers_per_gpu: 1   # workers
  batch_size: ${sizes.b}
  wandb: {enabled: true, project: mine}
  own_key: 1

# what follows
after: {a: 1,  b: 2}
last:
- 1
"""


def test_every_byte_outside_the_block_stays() -> None:
    text, kept = replace_block(FILE, (), VALUES, "2026-11-29 on here")
    before, after = FILE.split("optimization:")[0], FILE[FILE.index("\n# what follows") :]
    assert text.startswith(before)
    assert text.endswith(after)
    assert kept == ["batch_size"]
    block = yaml.safe_load(text)["optimization"]
    assert block == {
        "max_workers_per_gpu": 3,
        "batch_size": "${sizes.b}",
        "wandb": {"enabled": True, "project": "mine"},
        "own_key": 1,
    }
    for comment in ("# by hand", "# twice the cores", "# workers", "# measured 2026-11-29 on here"):
        assert comment in text
    assert "2020-01-01" not in text


def test_second_time_changes_only_the_date() -> None:
    first, _ = replace_block(FILE, (), VALUES, "one")
    second, _ = replace_block(first, (), VALUES, "two")
    assert second == first.replace("# measured one", "# measured two")


@pytest.mark.parametrize("text", ["", "worker: a.py:X\n", "worker: a.py:X", "# only a comment\n"])
def test_block_is_added(text: str) -> None:
    new, _ = replace_block(text, (), VALUES, "now")
    assert new.startswith(text)
    assert yaml.safe_load(new)["optimization"] == VALUES


def test_one_pool_of_several() -> None:
    text = "pools:\n  a:\n    worker: a.py:X\n    optimization: {batch_size: 1}\n  b:\n    worker: b.py:Y\n\nother: 1\n"
    new, _ = replace_block(text, ("pools", "b"), VALUES, "now")
    assert new.startswith(text.removesuffix("\nother: 1\n"))
    assert new.endswith("\nother: 1\n")
    new, _ = replace_block(new, ("pools", "a"), VALUES, "now")
    assert {name: pool["optimization"] for name, pool in yaml.safe_load(new)["pools"].items()} == {
        "a": VALUES,
        "b": VALUES,
    }


def test_windows_line_ends_stay() -> None:
    new, _ = replace_block(FILE.replace("\n", "\r\n"), (), VALUES, "now")
    assert new.count("\n") == new.count("\r\n")
    assert yaml.safe_load(new)["optimization"]["max_workers_per_gpu"] == 3


@pytest.mark.parametrize(
    ("text", "path", "words"),
    [
        ("a: [1\n", (), "line 2"),
        ("a: 1\n", ("pools", "x"), '"pools.x" is no mapping'),
        ("pools: {x: {worker: a}}\n", ("pools", "x"), "in braces"),
        ("x: &a 1\noptimization:\n  batch_size: *a\n", (), "alias"),
    ],
)
def test_files_that_cannot_be_changed_are_refused(text: str, path: tuple[str, ...], words: str) -> None:
    with pytest.raises(GpuschedError) as error:
        replace_block(text, path, VALUES, "now")
    assert words in str(error.value)
