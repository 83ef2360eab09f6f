"""Pools in a YAML file: which there are, and which value counts."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpusched.common.errors import GpuschedError
from gpusched.config.layers import load
from gpusched.pool.config import read_pools
from gpusched.pool.options import PoolOptions

FILE = """\
worker: work.py:Work
items: items.txt
optimization:
  batch_size: 8
  max_errors: 5%
  wandb: {enabled: true, project: captions}
pools:
  a:
    output_dir: a
    settings: {model: small}
  b:
    output_dir: b
    worker: other.py:Other
    optimization: {batch_size: 16, wandb: {enabled: no}, max_gpus: 2}
"""


def pools_of(tmp_path: Path, text: str, *scripts: str, **stated: object) -> dict[str, PoolOptions]:
    (tmp_path / "p.yaml").write_text(text)
    return {
        name: options for name, (options, _) in read_pools(str(tmp_path / "p.yaml"), scripts, stated, load({})).items()
    }


def test_each_pool_has_its_own_values_before_those_of_all(tmp_path: Path) -> None:
    pools = pools_of(tmp_path, FILE, max_errors="7")
    a, b = pools["a"], pools["b"]
    assert (a.worker, a.items, a.output_dir, a.batch_size, a.wandb) == ("work.py:Work", "items.txt", "a", 8, "captions")
    assert (b.worker, b.items, b.output_dir, b.batch_size, b.wandb) == ("other.py:Other", "items.txt", "b", 16, "")
    assert (a.set, b.set) == (("model=small",), ())
    assert (a.max_errors, b.max_errors) == ("7", "7")  # it is stated
    loaded = {name: each[1] for name, each in read_pools(str(tmp_path / "p.yaml"), (), {}, load({})).items()}
    assert loaded["b"].settings.max_gpus == 2 != loaded["a"].settings.max_gpus


def test_pools_are_chosen_by_name(tmp_path: Path) -> None:
    assert list(pools_of(tmp_path, FILE, "b")) == ["b"]
    with pytest.raises(GpuschedError, match="describes no pool 'c'") as error:
        pools_of(tmp_path, FILE, "c")
    assert "a, b" in error.value.hint
    with pytest.raises(GpuschedError, match="one pool, unnamed"):
        pools_of(tmp_path, "worker: work.py:Work\n", "c")


def test_a_file_of_one_pool_has_no_name(tmp_path: Path) -> None:
    assert list(pools_of(tmp_path, "worker: work.py:Work\nother: [1]\n")) == [""]


@pytest.mark.parametrize("text", ["pools: [a]\n", "pools: {a: 3}\n", "pools: text\n"])
def test_pools_must_have_names(tmp_path: Path, text: str) -> None:
    with pytest.raises(GpuschedError, match="pools by name"):
        pools_of(tmp_path, text)


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("items: [a, b]\n", "p.yaml: items: must be text"),
        ("pools: {a: {settings: [1]}}\n", "p.yaml: pools: a: settings: must hold names"),
        ("optimization: fast\n", "p.yaml: optimization: must hold names"),
    ],
)
def test_keys_have_their_form(tmp_path: Path, text: str, where: str) -> None:
    with pytest.raises(GpuschedError, match=where):
        pools_of(tmp_path, text)


@pytest.mark.parametrize("key", ["batch_size: [1]", "batch_size: '${b}'", "batch_size: two", "sinc: pt"])
def test_the_place_of_a_mistake_is_named(tmp_path: Path, key: str) -> None:
    with pytest.raises(GpuschedError, match=f"p.yaml: optimization: {key.partition(':')[0]}: (must be|is unknown)"):
        pools_of(tmp_path, f"optimization: {{{key}}}\n")
