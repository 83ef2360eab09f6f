"""The pictures of one model: drawn of what an analysis left, whole, with pages where there are many layers."""

from __future__ import annotations

import csv
import struct
from pathlib import Path

import pytest
from gpusched.commands.esd.write import plots

np = pytest.importorskip("numpy")
pytest.importorskip("matplotlib")
pytestmark = pytest.mark.slow


def leave(directory: Path, stem: str, blocks: int) -> None:
    """A table and spectra as an analysis leaves them; of the first layer without a fit, of the last one nothing."""
    source = np.random.default_rng(1)
    for room in ("per_model_csv", "spectra"):
        (directory / room).mkdir(parents=True, exist_ok=True)
    rows: list[list[object]] = []
    spectra = {}
    for n in range(blocks):
        for kind in ("self_attn.q_proj", "mlp.up_proj"):
            evals = np.sort(source.pareto(2.0, 60) + 1e-7)
            name = f"model.layers.{n}.{kind}.weight"
            start = 30
            alpha = 1 + 30 / np.log(evals[start:] / evals[start]).sum()
            rows.append([name, alpha if rows else float("nan"), 0.1, evals[start], 30, 60])
            spectra[name] = evals
    spectra.popitem()
    with open(directory / f"per_model_csv/{stem}.csv", "w", newline="") as file:
        csv.writer(file).writerows([["longname", "alpha", "D", "fit_xmin", "n_tail", "num_evals"], *rows])
    np.savez(directory / f"spectra/{stem}.npz", **spectra)


def size(path: Path) -> tuple[int, ...]:
    """Width and height of a PNG."""
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG")
    return struct.unpack(">II", data[16:24])


def test_pictures_of_a_small_and_of_a_shrunken_model(tmp_path: Path) -> None:
    leave(tmp_path, "acme--tiny", 21)  # 42 layers: two pages
    names = [Path(path).name for path in plots.write(str(tmp_path), "acme--tiny")]
    assert names == ["acme--tiny-alpha.png", "acme--tiny-esd.png", "acme--tiny-esd-2.png"]
    assert all(min(size(tmp_path / "plots" / name)) > 200 for name in names)
    leave(tmp_path, "acme--tiny", 1)
    plots.write(str(tmp_path), "acme--tiny")
    assert sorted(path.name for path in (tmp_path / "plots").iterdir()) == [
        "acme--tiny-alpha.png",
        "acme--tiny-esd.png",
    ]


def test_one_infinite_spectrum_costs_no_picture(tmp_path: Path) -> None:
    leave(tmp_path, "acme--tiny", 2)
    path = tmp_path / "spectra/acme--tiny.npz"
    with np.load(path) as stored:
        spectra = dict(stored)
    spectra[next(iter(spectra))][-1] = np.inf
    np.savez(path, **spectra)
    names = [Path(path).name for path in plots.write(str(tmp_path), "acme--tiny")]
    assert names == ["acme--tiny-alpha.png", "acme--tiny-esd.png"]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("model.layers.3.mlp.up_proj.weight", "mlp.up_proj"),
        ("transformer.h.0.attn.c_attn.weight", "attn.c_attn"),
        ("lm_head.weight", "lm_head"),
        ("model.layers.3.experts.7.w1.weight", "w1"),
    ],
)
def test_kinds(name: str, kind: str) -> None:
    assert plots.kind_of({"longname": name}) == kind
