"""The page over all models: whole, escaped, loading nothing, and readable by a parser."""

from __future__ import annotations

import random
import re
from html.parser import HTMLParser

from hypothesis import given
from hypothesis import strategies as st

from gpusched.views.html.page import ModelLine, ModelReport, render

VOID = {"meta", "br", "input"}


class Reader(HTMLParser):
    """The texts of a page, its addresses, and whether its elements are closed in order."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.texts: list[str] = []
        self.links: list[str] = []
        self.rows = 0
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)
        self.rows += tag == "tr"
        self.links += [value or "" for name, value in attrs if name in ("href", "src")]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.links += [value or "" for name, value in attrs if name in ("href", "src")]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] not in ("script", "style"):
            self.texts.append(data)


def report(*models: ModelLine) -> ModelReport:
    return ModelReport("out", "xmin_mid", (("α", 3), ("Layers", 0)), ("Device",), models)


def line(name: str, *numbers: float | None, reason: str = "", **more: str) -> ModelLine:
    links = (("table", f"per_model_csv/{name}.csv"),)
    return ModelLine(name, "failed" if reason else "done", numbers, ("cpu",), links, reason=reason, **more)


def test_done_failed_and_waiting_models() -> None:
    page = render(report(line("a/b", 2.5, 10), line("c", reason="load: cut"), ModelLine("d", "waiting", reason="soon")))
    found = Reader(page)
    assert not found.open
    text = " ".join(found.texts)
    assert "1 done, 1 failed, 1 not yet of 3 models" in text
    assert "2.500" in text and "load: cut" in text and "soon" in text
    assert found.links == ["per_model_csv/a/b.csv"]


def test_it_is_readable_at_five_hundred_rows_and_loads_nothing() -> None:
    source = random.Random(1)
    page = render(report(*(line(f"lab/m{n}", source.gauss(3, 1), 7) for n in range(500))))
    assert Reader(page).rows == 501 and len(page) < 250_000
    assert not re.search(r"(?:src|href)=\"(?:https?:)?//", page) and "default-src 'none'" in page
    assert "http" not in page.replace("http-equiv", "")


@given(st.text(min_size=1), st.text(min_size=1))
def test_whatever_a_name_or_a_reason_holds_is_text(name: str, reason: str) -> None:
    found = Reader(render(report(line(name, None, 1, notes=reason), line(name + "x", reason=reason))))
    assert not found.open and found.rows == 3


def test_a_hostile_name() -> None:
    name = "<script>alert(1)</script>\"' onload=x\x1b[2J%2F#?"
    page = render(report(line(name, 1, 2), line(name, reason=name)))
    assert page.count("<script") == 0 and "\x1b" not in page
    assert "per_model_csv/%3Cscript%3E" in page and "%252F%23%3F.csv" in page


def test_nothing_at_all() -> None:
    assert "0 done, 0 failed of 0 models" in render(report())
