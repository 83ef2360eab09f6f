"""The pictures of one model: drawn of what an analysis left, whole, with pages where there are many layers."""

from __future__ import annotations

import csv
import os
import re
import struct
import time
from pathlib import Path

import pytest
from gpusched.commands.esd.write import plots

from gpusched.esd.records import has_plots

np = pytest.importorskip("numpy")
pytest.importorskip("matplotlib")
pytestmark = pytest.mark.slow


ALPHA = [f"acme--tiny-alpha.{suffix}" for suffix in ("png", "pdf", "svg")]


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
    assert names == [*ALPHA, "acme--tiny-esd.png", "acme--tiny-esd-2.png"]
    assert all(min(size(tmp_path / "plots" / name)) > 200 for name in names if name.endswith("png"))
    leave(tmp_path, "acme--tiny", 1)
    plots.write(str(tmp_path), "acme--tiny")
    assert {path.name for path in (tmp_path / "plots").iterdir()} == {*ALPHA, "acme--tiny-esd.png"}


def texts(path: Path) -> str:
    """The words of a drawing as SVG: those that are drawn as paths stand in comments."""
    return " ".join(re.findall(r"<!-- (.*?) -->", path.read_text("utf-8")))


def test_figures_of_single_layers_for_a_paper(tmp_path: Path) -> None:
    leave(tmp_path, "acme--tiny", 2)
    table = tmp_path / "per_model_csv/acme--tiny.csv"
    wanted = r"layers\.1\."
    assert not has_plots(str(tmp_path), "acme--tiny", wanted)
    names = {Path(path).name for path in plots.write(str(tmp_path), "acme--tiny", wanted)}
    stem = "acme--tiny-layer-model.layers.1"
    layers = {
        f"{stem}.{kind}.weight.{suffix}" for kind in ("self_attn.q_proj", "mlp.up_proj") for suffix in plots.FORMATS
    }
    assert names == {*ALPHA, "acme--tiny-esd.png"} | layers
    for name in names:
        data = (tmp_path / "plots" / name).read_bytes()
        assert data.startswith({"png": b"\x89PNG", "pdf": b"%PDF", "svg": b"<?xml"}[name[-3:]])
    words = texts(tmp_path / "plots" / f"{stem}.self_attn.q_proj.weight.svg")
    for label in ("eigenvalue", "weight", "probability density", "tail", "power law", "xmin", "below xmin"):
        assert label in words
    assert (
        "exponent" in (found := texts(tmp_path / "plots" / ALPHA[2])) and "self" in found and "layer, by depth" in found
    )
    assert has_plots(str(tmp_path), "acme--tiny", wanted) and has_plots(str(tmp_path), "acme--tiny")
    assert not has_plots(str(tmp_path), "acme--tiny", "layers.0")
    os.utime(table, (time.time() + 9, time.time() + 9))
    assert not has_plots(str(tmp_path), "acme--tiny", wanted)


def test_the_same_figure_has_the_same_bytes(tmp_path: Path) -> None:
    leave(tmp_path, "acme--tiny", 2)
    first = {path: Path(path).read_bytes() for path in plots.write(str(tmp_path), "acme--tiny", "q_proj")}
    assert {path: Path(path).read_bytes() for path in plots.write(str(tmp_path), "acme--tiny", "q_proj")} == first


@pytest.mark.parametrize("count", [8, 100, 700])
def test_marks_do_not_lie_on_each_other(count: int) -> None:
    """Of 100 layers no two marks touch along the axis; the kinds differ in colour and in shape."""
    kinds = ("q", "k", "v", "o", "gate", "up", "down", "x", "y", "z")
    layers = [{"longname": f"h.{n // 10}.{kinds[n % 10]}", "alpha": str(3 + n % 5)} for n in range(count)]
    figure = plots.alpha_figure("m", layers)
    figure.canvas.draw()
    (axes,) = figure.axes
    left, right = (axes.transData.transform((x, 3))[0] * 72 / figure.dpi for x in (0, 1))
    lines = [line for line in axes.lines if line.get_linestyle() == "None"]
    assert all(line.get_markersize() <= max(1.5, right - left) for line in lines)
    looks = {(line.get_color(), line.get_marker()) for line in lines}
    assert len(looks) == len({color for color, _ in looks}) == len({marker for _, marker in looks}) == len(lines) == 8


def test_one_infinite_spectrum_costs_no_picture(tmp_path: Path) -> None:
    leave(tmp_path, "acme--tiny", 2)
    path = tmp_path / "spectra/acme--tiny.npz"
    with np.load(path) as stored:
        spectra = dict(stored)
    spectra[next(iter(spectra))][-1] = np.inf
    np.savez(path, **spectra)
    names = [Path(path).name for path in plots.write(str(tmp_path), "acme--tiny")]
    assert names == [*ALPHA, "acme--tiny-esd.png"]


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
