"""The comparison of models: rank correlation against published numbers, and what each chart shows of which models."""

from __future__ import annotations

import hashlib
import math
import random
import shutil
import subprocess
import time
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from gpusched.esd.compare.charts import charts
from gpusched.esd.compare.rank_correlation import interval, spearman
from gpusched.esd.layers_table import read_exponents, write_layers
from gpusched.esd.model_list import parse
from gpusched.esd.records import ModelResult
from gpusched.views.html.charts import Chart, Scale, figure
from gpusched.views.html.page import ModelLine, ModelReport, render

pytest.importorskip("pyarrow")

# Hours of television a week, by IQ: a textbook's example, with ρ = -29/165.
IQ = (106, 86, 100, 101, 99, 103, 97, 113, 112, 110)
HOURS = (7, 0, 27, 50, 28, 29, 20, 12, 6, 17)


def test_rank_correlation_of_a_textbook() -> None:
    assert spearman(IQ, HOURS) == pytest.approx(-29 / 165)
    assert spearman((1, 2, 2, 9), (3, 7, 7, 8)) == pytest.approx(1)
    assert spearman((1, 2, 2, 3), (1, 3, 2, 4)) == pytest.approx(4.5 / math.sqrt(4.5 * 5))
    assert math.isnan(spearman((1, 1, 1), (1, 2, 3)))


def test_the_interval_of_a_correlation() -> None:
    """For normal values, σ of Fisher's z of ρ is about √((1 + ρ²/2)/(n - 3)) (Bonett and Wright 2000)."""
    source = random.Random(5)
    xs = [source.gauss(0, 1) for _ in range(200)]
    ys = [x + source.gauss(0, 1) for x in xs]
    rho, (low, high) = spearman(xs, ys), interval(xs, ys)
    width = math.sqrt((1 + rho**2 / 2) / 197)
    assert low == pytest.approx(math.tanh(math.atanh(rho) - 1.96 * width), abs=0.04)
    assert high == pytest.approx(math.tanh(math.atanh(rho) + 1.96 * width), abs=0.04)
    assert interval(xs, ys) == (low, high), "the same in every run"
    assert all(map(math.isnan, interval((1, 1), (1, 1))))


class Lab:
    """Results of models with simulated layers, in a directory."""

    def __init__(self, output: Path, table: str) -> None:
        (output / "per_model_csv").mkdir()
        self.output = str(output)
        self.rows = {row.model: row for row in parse(table.encode(), "atlas.csv").rows}
        self.results: list[ModelResult] = []

    def leave(self, name: str, alphas: Sequence[float], *, kinds: int = 1, flag: str = "") -> None:
        lines = ["longname,block,alpha"]
        lines += [f"h.{n // kinds}.{n % kinds},{n // kinds},{alpha}" for n, alpha in enumerate(alphas)]
        text = "\n".join([*lines, "head,,9.5", f"h.{len(alphas) // kinds - 1}.bad,0,nan"]) + "\n"
        Path(self.output, "per_model_csv", f"{name.replace('/', '--')}.csv").write_text(text)
        ordered = sorted(alphas)
        record: dict[str, Any] = {"csv": {"sha256": hashlib.sha256(text.encode()).hexdigest()}}
        record["alpha_median"] = ordered[len(ordered) // 2]
        self.results.append(ModelResult(name, True, record, row=self.rows.get(name), flag=flag))

    def charts(self) -> dict[str, Chart]:
        write_layers(self.output, self.results)
        return {chart.title: chart for chart in charts(self.results, self.output)}


LIST = """model_id,source_model,base_model_relation,downloads,created,note
lab/a,,base,10,2024-01-01,x
lab/b,,base,200,2024-07-01T12:00:00Z,y
u/a-lora,lab/a,adapter,3000,2025-01-01,
u/a-tune,lab/a,finetune,40000,2025-07-01,z
u/a-tune-lora,u/a-tune,adapter,500000,2026-01-01,z
u/part,lab/b,adapter,7,,
"""


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    lab = Lab(tmp_path, LIST)
    lab.leave("lab/a", [3, 4, 5], kinds=1)
    lab.leave("lab/b", [2.5, 3.5, 2.5, 3.5], kinds=2)
    lab.leave("u/a-lora", [3.5, 4.5, 5.5])
    lab.leave("u/a-tune", [2.9, 3.9, 4.9])
    lab.leave("u/a-tune-lora", [5, 5.2, 5.4])
    lab.leave("u/part", [30, 30, 30], flag="partial")
    return lab


def test_models_over_each_other_by_depth(lab: Lab) -> None:
    chart = lab.charts()["α by depth, 5 models"]
    lines = {marks.names[0]: list(marks.points) for marks in chart.marks if marks.names}
    assert lines["lab/a"] == [(0, 3), (0.5, 4), (1, 5)]
    assert lines["lab/b"] == [(0, 3), (1, 3)], "the median of each block"
    assert lines["median of all"][0] == pytest.approx((0, 3))
    assert [marks.label for marks in chart.marks if marks.label] == ["lab/a", "others", "median of all"]
    assert "u/part" not in lines and read_exponents(lab.output)["u/part"], "what counts in no mean is in no chart"


def test_families_and_bases(lab: Lab) -> None:
    found = lab.charts()
    boxes = {box.label: box.values for box in found["α by family"].boxes}
    assert list(boxes) == ["lab/a (4)", "lab/b (1)"], "an adapter on a fine-tune is of the base's family"
    assert boxes["lab/b (1)"] == (2.5, 2.5, 3.5, 3.5, 3.5)
    chart = found["base against what was made of it"]
    pairs = {name: point for marks in chart.marks for name, point in zip(marks.names, marks.points, strict=True)}
    assert pairs == {
        "u/a-lora on lab/a": (4, 4.5),
        "u/a-tune on lab/a": (4, 3.9),
        "u/a-tune-lora on u/a-tune": (3.9, 5.2),
    }
    assert [marks.label for marks in chart.marks] == ["adapter", "finetune"] and "2 of 3 lie above" in chart.note


def test_columns_of_the_list(lab: Lab) -> None:
    found = lab.charts()
    downloads, created = found["α against downloads"], found["α against created"]
    rho = spearman([10, 200, 3000, 40000, 500000], [4, 3.5, 4.5, 3.9, 5.2])
    assert f"ρ = {rho:.2f}, 95 % interval" in downloads.note and "5 models" in downloads.note
    assert downloads.x.is_log and not created.x.is_log
    assert created.marks[0].points[1] == pytest.approx((2024.5, 3.5), abs=0.01)
    assert "α against note" not in found and "α against model_id" not in found


def test_the_column_family_counts_more_than_bases(tmp_path: Path) -> None:
    lab = Lab(tmp_path, "model_id,family\na,llama\nb,llama\nc,gpt\n")
    for n, name in enumerate("abc"):
        lab.leave(name, [3 + n, 4 + n])
    assert [box.label for box in lab.charts()["α by family"].boxes] == ["llama (2)", "gpt (1)"]


@pytest.mark.parametrize(
    ("pattern", "label"),
    [
        ("run/checkpoint-{}", "run"),
        ("acme/tiny@step{}", "acme/tiny"),
        ("acme/tiny@{}", "acme/tiny"),
        ("o/epoch_{}-x", "o"),
    ],
)
def test_a_series_by_step(tmp_path: Path, pattern: str, label: str) -> None:
    names = [pattern.format(step) for step in (1000, 50, 200)]
    lab = Lab(tmp_path, "\n".join(["model_id", *names, "acme/v2"]))
    for n, name in enumerate([*names, "acme/v2"]):
        lab.leave(name, [3 + n, 3 + n])
    line, points = lab.charts()["α against step"].marks
    assert list(line.points) == list(points.points) == [(50, 4), (200, 5), (1000, 3)] and line.label == label


def test_directories_of_a_series_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for step in (1000, 50, 200):
        (tmp_path / f"run/checkpoint-{step}").mkdir(parents=True)
    (tmp_path / "run/checkpoint-9.txt").write_text("")
    rows = parse(b"model_id,likes\nrun/checkpoint-*,3\nno/such-*,4\n", "atlas.csv").rows
    assert [row.name for row in rows] == [*(f"run/checkpoint-{step}" for step in (50, 200, 1000)), "no/such-*"]
    assert dict(rows[2].cells)["likes"] == "3"


def test_one_model_is_no_comparison(tmp_path: Path) -> None:
    lab = Lab(tmp_path, "model_id\na\n")
    lab.leave("a", [3, 4])
    assert lab.charts() == {}


def test_a_few_exponents_do_not_stretch_a_chart(tmp_path: Path) -> None:
    lab = Lab(tmp_path, "model_id\n" + "\n".join(f"m{n}" for n in range(40)))
    for n in range(40):
        lab.leave(f"m{n}", [3, 3.5, 1e6 if n == 7 else 4])
    chart = lab.charts()["α by depth, 40 models"]
    assert chart.y and chart.y.high < 8 and "1 values above" in chart.note


def test_scales() -> None:
    assert Scale("", 0, 10).ticks() == [0, 2, 4, 6, 8, 10] and Scale("", 1, 1000, is_log=True).ticks() == [
        1,
        10,
        100,
        1000,
    ]
    assert Scale("", 10, 1000, is_log=True).place(100) == pytest.approx(0.5) and Scale("", 3, 3).place(3) == 0.5
    assert Scale("", 0, 10).place(-5) == 0 and Scale("", 0, 10).place(25) == 1
    for low, high in ((2.3, 2.9), (1, 17.3), (0.001, 0.0011), (-4, 1e7)):
        assert 2 <= len(Scale("", low, high).ticks()) <= 8


SVG = "{http://www.w3.org/2000/svg}"


def test_a_drawing_is_whole_and_within_its_frame(lab: Lab) -> None:
    lab.leave("<b>&\x1b[31m", [3, 4])
    for chart in lab.charts().values():
        text = figure(chart)
        drawing = ET.fromstring(text[text.index("<svg") : text.index("</figure>")])
        _, _, width, height = map(float, drawing.attrib["viewBox"].split())
        for mark in drawing.iter(f"{SVG}circle"):
            assert 0 <= float(mark.attrib["cx"]) <= width and 0 <= float(mark.attrib["cy"]) <= height
        assert "<b>&" not in text and "\x1b" not in text
        labels = [label.text for label in drawing.iter(f"{SVG}text")]
        assert chart.x.label in labels


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report of 200 models with simulated exponents of their layers."""
    output, source = tmp_path_factory.mktemp("large"), random.Random(0)
    lines = [
        f"lab{n % 9}/m{n},{f'lab{n % 9}/m{n % 9}' if n > 8 else ''},adapter,{source.randrange(10**6)}"
        for n in range(200)
    ]
    lab = Lab(output, "\n".join(["model_id,source_model,base_model_relation,downloads", *lines]))
    for name in lab.rows:
        lab.leave(name, [1 + source.lognormvariate(1, 0.2) for _ in range(32 * 7)], kinds=7)
    drawn = tuple(lab.charts().values())
    models = tuple(ModelLine(each.name, "done", (each.record["alpha_median"],), ("cpu",)) for each in lab.results)
    path = output / "report.html"
    path.write_text(render(ModelReport("large", "", (("α median", 3),), ("Device",), models, drawn)), "utf-8")
    return path


def test_a_report_of_200_models_is_small(large: Path) -> None:
    text = large.read_text("utf-8")
    assert "α by depth, 200 models" in text and len(text) < 1 << 20 and text.count("<") < 20_000


@pytest.mark.soak
def test_a_report_of_200_models_opens_in_two_seconds(large: Path) -> None:
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no browser")

    def open_page(address: str) -> float:
        began = time.monotonic()
        words = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--window-size=1280,900"]
        words += [f"--user-data-dir={large.parent}/browser", f"--screenshot={large.parent}/page.png", address]
        subprocess.run(words, check=True, capture_output=True, timeout=60)
        return time.monotonic() - began

    open_page("about:blank")
    blank = min(open_page("about:blank") for _ in range(2))
    assert min(open_page(large.as_uri()) for _ in range(2)) - blank < 2
