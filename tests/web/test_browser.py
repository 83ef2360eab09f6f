"""The page in a headless Chromium: it loads, follows, survives restarts, fits, and obeys keys."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.box import wait_for
from tests.support.browser import CHROMIUM, Browser
from tests.support.web_page import WebPage
from tests.web.conftest import EVIL

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium here (Debian: apt-get install chromium)"),
]

LIVE = "document.getElementById('link').textContent === 'live'"
TEXT = "document.body.innerText"


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


def load(chromium: Browser, page: WebPage, query: str = "", width: int = 1280) -> None:
    chromium.resize(width, 900)
    chromium.open(page.url + query)
    chromium.await_value(f"document.URL === {page.url + query!r} && document.readyState === 'complete' && {LIVE}")
    chromium.said.clear()


@pytest.mark.parametrize("width", [400, 1280])
def test_it_loads_and_fits(chromium: Browser, page: WebPage, width: int) -> None:
    load(chromium, page, "?job=4", width)
    chromium.await_value("document.querySelector('#timeline svg') !== null")
    assert chromium.value("document.documentElement.scrollWidth <= innerWidth")
    assert chromium.value("[...document.querySelectorAll('article')].length") == 2
    text = chromium.value(TEXT)
    assert f"step 1 {EVIL}" in text and "waits for 2 GPUs" in text
    assert chromium.value("document.querySelectorAll('img').length") == 0
    job, jobs = (
        chromium.value(f"document.getElementById('{name}').getBoundingClientRect().x") for name in ("job", "jobs")
    )
    assert (job > jobs + 300) == (width == 1280)
    assert chromium.value("document.querySelectorAll('th.rare').length > 0")
    assert chromium.value("getComputedStyle(document.querySelector('th.rare')).display") == "none"
    assert not chromium.said


def test_it_follows_what_happens(chromium: Browser, page: WebPage) -> None:
    load(chromium, page, "?job=4")
    chromium.value("window.mark = document.getElementById('j7')")
    step = chromium.value("document.getElementById('log').textContent.match(/step (\\d+) [^]*?$/)[0].length")
    chromium.await_value(f"document.getElementById('log').textContent.length > {step + 30}")
    assert page.box.gpusched("hold", "6", "-q", page.words[1]).code == 0
    chromium.await_value("document.getElementById('j6').textContent.includes('held')")
    assert page.box.gpusched("release", "6", "-q", page.words[1]).code == 0
    chromium.await_value("document.getElementById('j6').textContent.includes('queued')")
    assert chromium.value("window.mark === document.getElementById('j7')")  # what is the same was left alone
    assert "2 running" in chromium.value("document.title") and not chromium.said


def test_it_survives_a_restart_of_the_dispatcher(chromium: Browser, page: WebPage) -> None:
    load(chromium, page)
    chromium.value("window.mark = 1")
    head = "document.getElementById('head').textContent"
    pid = int(chromium.value(head).split("dispatched by pid ")[1].split(",")[0])
    os.kill(pid, signal.SIGKILL)
    chromium.await_value(f"{head}.includes('no dispatcher; 2 jobs still running')")
    page.box.start("run", "list.txt", "--log-dir", page.words[1])
    chromium.await_value(f"{head}.includes('dispatched by pid') && !{head}.includes('pid {pid}')")
    chromium.await_value("document.getElementById('j3').textContent.includes('running')")
    assert chromium.value(f"window.mark === 1 && {LIVE}") and not chromium.said


def test_it_survives_a_restart_of_the_server(chromium: Browser, page: WebPage) -> None:
    load(chromium, page)
    chromium.value("window.mark = 1")
    page.server.signal(signal.SIGKILL)
    page.server.wait()
    chromium.await_value("document.getElementById('link').textContent.startsWith('not connected')")
    page.restart()
    chromium.await_value(LIVE)
    assert chromium.value("window.mark") == 1


def test_a_hidden_page_asks_for_nothing(chromium: Browser, page: WebPage) -> None:
    load(chromium, page)
    chromium.value("Object.defineProperty(document, 'hidden', {value: true, configurable: true})")
    hide = "document.dispatchEvent(new Event('visibilitychange'))"
    chromium.value(hide)
    text = chromium.value("document.getElementById('head').textContent")
    wait_for(lambda: page.events()[0]["parts"]["head"])
    assert chromium.value("new Promise(done => setTimeout(done, 1500))") is None
    assert chromium.value("document.getElementById('head').textContent") == text
    chromium.value("delete document.hidden")
    chromium.value(hide)
    chromium.await_value(f"document.getElementById('head').textContent !== {text!r}")


def test_keys_and_links(chromium: Browser, page: WebPage, tmp_path: Path) -> None:
    load(chromium, page)
    rows = "[...document.querySelectorAll('#rows tr')].map(row => row.id).join()"
    chromium.press("/", "/")
    for letter in "late":
        chromium.press(letter, letter)
    chromium.await_value(f"{rows} === 'j5,j6,j7' && location.search === '?text=late'")
    chromium.press("Escape")
    chromium.await_value(f"{rows}.includes('j1') && location.search === ''")
    chromium.press("j", "j")
    chromium.press("ArrowDown")
    chosen = chromium.value("document.activeElement.textContent")
    chromium.press("Enter", "\r")
    chromium.await_value(f"document.querySelector('#job h2') && location.search === '?job={chosen}'")
    chromium.await_value("document.querySelectorAll('#rows [aria-selected]').length === 1")
    chromium.press("Escape")
    chromium.await_value("document.getElementById('job').hidden")
    chromium.value("[...document.querySelectorAll('thead a')].find(link => link.textContent === 'Job').click()")
    chromium.await_value(f"{rows} === 'j1,j2,j3,j4,j5,j6,j7'")
    chromium.value("[...document.querySelectorAll('thead a')].find(link => link.textContent === 'Job').click()")
    chromium.await_value(f"{rows} === 'j7,j6,j5,j4,j3,j2,j1'")
    chromium.value("history.back()")
    chromium.await_value(f"{rows} === 'j1,j2,j3,j4,j5,j6,j7'")
    chromium.value("[...document.querySelectorAll('#states a')].find(link => link.textContent === '1 failed').click()")
    chromium.await_value(f"{rows} === 'j1' && document.getElementById('text').value === 'state=failed'")
    assert not chromium.said


def test_a_job_that_is_chosen_comes_into_view(chromium: Browser, page: WebPage) -> None:
    load(chromium, page, width=400)
    place = "document.getElementById('{}').getBoundingClientRect().top".format
    chromium.value("document.getElementById('j1').scrollIntoView({block: 'end'})")
    chromium.value("document.querySelector('#j1 .wide').click()")
    chromium.await_value(f"!document.getElementById('job').hidden && {place('job')} >= -1 && {place('job')} < 800")
    chromium.value("document.querySelector('#job h2 a').click()")
    chromium.await_value(f"document.getElementById('job').hidden && {place('j1')} < 900")
