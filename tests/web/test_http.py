"""The page by HTTP: to whom it answers, what stands in it, and how it ends."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.box import wait_for
from tests.support.other_user import NEEDS_TWO_USERS, OTHER_UID
from tests.support.web_page import PageReader, WebPage
from tests.views.test_story import data_of
from tests.web.conftest import EVIL

pytestmark = pytest.mark.slow


def test_it_prints_its_address_alone_and_how_to_reach_it(page: WebPage) -> None:
    out, err = page.server.said().split("\n", 1)
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/[\w-]{32}/", out)
    assert f"ssh -N -L {page.port}:127.0.0.1:{page.port} " in err and err.count("\n") == 1


@pytest.mark.parametrize(
    ("method", "below", "headers", "status"),
    [
        ("GET", "", {"Host": "evil.example"}, 421),
        ("GET", "", {"Host": "127.0.0.1.evil.example:80"}, 421),
        ("GET", "", {"Host": "localhost@evil.example"}, 421),
        ("GET", "", {"Host": ""}, 421),
        ("GET", "events", {"Host": "evil.example"}, 421),
        ("GET", "events", {"Origin": "http://evil.example"}, 403),
        ("GET", "events", {"Origin": "null"}, 403),
        ("GET", "", {"Origin": "http://127.0.0.1:1"}, 403),
        ("GET", "/", {}, 404),
        ("GET", "/favicon.ico", {}, 404),
        ("GET", f"/{'A' * 32}/", {}, 404),
        ("GET", f"/{'A' * 32}/events", {}, 404),
        ("GET", "/events", {}, 404),
        ("GET", "//", {}, 404),
        ("GET", "/%ff%00/", {}, 404),
        ("GET", "/../../../../etc/passwd", {}, 404),
        ("GET", "../../../../etc/passwd", {}, 404),
        ("GET", "%2e%2e/%2e%2e/etc/passwd", {}, 404),
        ("GET", "report/../../../etc/passwd", {}, 404),
        ("GET", "web.js", {}, 404),
        ("POST", "", {}, 405),
        ("PUT", "events", {}, 405),
        ("DELETE", "?job=1", {}, 405),
        ("OPTIONS", "", {"Origin": "http://evil.example"}, 403),
        ("TRACE", "", {}, 405),
    ],
)
def test_others_get_nowhere(page: WebPage, method: str, below: str, headers: dict[str, str], status: int) -> None:
    with page.ask(method, below, **headers) as answer:
        body = answer.read().decode()
        assert answer.status == status
        assert page.root.strip("/") not in body + str(answer.headers)
        assert "counts" not in body and "root:" not in body
        assert "Access-Control-Allow-Origin" not in answer.headers


@pytest.mark.parametrize(
    "headers", [{}, {"Host": "localhost:8080"}, {"Host": "localhost:8080", "Origin": "http://localhost:8080"}]
)
def test_its_user_gets_there_through_a_tunnel_too(page: WebPage, headers: dict[str, str]) -> None:
    with page.ask("GET", "", **headers) as answer:
        assert answer.status == 200
        policy = answer.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy and "frame-ancestors 'none'" in policy
        assert (answer.headers["Referrer-Policy"], answer.headers["Cache-Control"]) == ("no-referrer", "no-store")
        assert "Set-Cookie" not in answer.headers and "counts" in answer.read().decode()


def test_it_listens_on_the_loopback_alone(page: WebPage) -> None:
    listening = [line.split()[1] for line in Path("/proc/net/tcp").read_text().splitlines() if " 0A " in line]
    assert [address for address in listening if address.endswith(f":{page.port:04X}")] == [f"0100007F:{page.port:04X}"]


@NEEDS_TWO_USERS
def test_another_user_who_knows_the_address_is_refused(page: WebPage) -> None:
    code = f"import encodings.idna, os, urllib.request; os.setuid({OTHER_UID}); urllib.request.urlopen({page.url!r})"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "HTTP Error 403" in ended.stderr


@pytest.mark.parametrize("below", ["?job=1", "?job=4", "?text=<script>alert(3)</script>&order=state", "report"])
def test_hostile_texts_stay_texts(page: WebPage, below: str) -> None:
    found = PageReader(page.get(below.replace("<", "%3C")))
    assert not found.open
    tags = {tag for tag, _ in found.elements}
    assert not tags & {"img", "iframe", "object", "embed", "base", "link"}
    scripts = [attributes for tag, attributes in found.elements if tag == "script"]
    assert len(scripts) == (2 if below == "report" else 1)
    assert not any(name.startswith("on") for _, attributes in found.elements for name in attributes)
    assert EVIL in found.text and all(link.startswith(("?", "#", "report?", "events")) for link in found.links)


@pytest.mark.parametrize(
    "below",
    [
        "?queue=/etc/passwd",
        "?queue=../..",
        "?job=99999999999999999999",
        "?job=-1",
        "?job=x",
        "?job=77",
        "?rows=1e9",
        "?rows=99999999",
        "?order=nonsense",
        "?text=%ff%00%1b",
        "?" + "a=b&" * 1000,
    ],
)
def test_nonsense_shows_the_page_all_the_same(page: WebPage, below: str) -> None:
    text = PageReader(page.get(below)).text
    assert "GPU 0" in text and "root:" not in text


def test_the_same_numbers_as_status_and_report(page: WebPage) -> None:
    box = page.box
    words = ("-q", page.words[1])
    status = json.loads(box.gpusched("status", "-v", "--json", *words).out)["queues"][0]
    printed = box.gpusched("status", *words).out.splitlines()
    found = PageReader(page.get("?job=3"))
    rows = {attributes["id"]: attributes for tag, attributes in found.elements if tag == "tr" and "id" in attributes}
    assert rows.keys() == {f"j{job['id']}" for job in status["jobs"]}
    parts = page.events()[0]["parts"]
    for job in status["jobs"]:
        assert f">{job['state']}</td>" in parts[f"j{job['id']}"]
    assert printed[2] in found.text and f"pid {status['dispatcher']}" in found.text
    for device in status["devices"]:
        assert f"GPU {device['index']} job" in found.text or device["state"] != "running"
    for line in printed:
        if "MiB" in line and "job 3" in line:
            assert " ".join(line.split()).split(" MiB")[0].split(" ", 1)[1] in found.text
    jobs = data_of(page.get("report"))["jobs"]
    assert [(job[0], job[1]) for job in jobs] == [(job["id"], job["state"]) for job in status["jobs"]]
    assert "waits for 2 GPUs" in parts["j5"] and "exit 3" in parts["j1"] and EVIL not in "".join(parts.values())
    explained = box.gpusched("explain", "1", *words).out.splitlines()
    shown = PageReader(page.get("?job=1")).text
    assert all(" ".join(line.split()) in shown for line in explained if "attempt" not in line)


def test_a_stream_sends_what_has_changed(page: WebPage) -> None:
    first, *others = page.events("?job=4", 4)
    assert {"head", "gpus", "job", "timeline", "j4", "j7"} <= first["parts"].keys()
    assert first["rows"] == ["j3", "j4", "j5", "j6", "j7", "j2", "j1"] or len(first["rows"]) == 7
    assert all("j7" not in each["parts"] and each["rows"] is None for each in others)
    assert "step" in first["parts"]["job"] and any("job" in each["parts"] for each in others)
    with page.ask("HEAD", "events") as answer:
        assert answer.status == 200 and answer.read() == b""


def test_a_filter_an_order_and_few_rows(page: WebPage) -> None:
    def rows(query: str) -> list[str]:
        return [str(name) for name in page.events(query)[0]["rows"]]

    assert rows("?text=tag%3Dlate") == ["j5", "j6", "j7"] and rows("?text=state%3Dfailed") == ["j1"]
    assert rows("?order=id&reverse=1&rows=2") == ["j7", "j6"]
    assert "and 5 more" in page.events("?rows=2")[0]["parts"]["more"]


def test_viewers_are_bounded(page: WebPage) -> None:
    def status() -> int:
        with page.ask("HEAD", "events") as answer:
            return answer.status

    wait_for(lambda: status() == 200)
    with contextlib.ExitStack() as streams:
        for _ in range(16):
            answer = streams.enter_context(page.ask("GET", "events"))
            assert answer.status == 200 and answer.readline()
        assert status() == 503 and "GPU 0" in page.get()
    wait_for(lambda: status() == 200)


def test_a_request_without_an_end_is_cut_off(page: WebPage) -> None:
    with socket.create_connection(("127.0.0.1", page.port), timeout=30) as connection:
        connection.sendall(b"GET " + page.root.encode() + b" HTTP/1.1\r\nHost: 127.0.0.1\r\nX: " + b"x" * (1 << 17))
        assert b" 400 " in connection.recv(4096)


def test_all_queues(page: WebPage) -> None:
    page.box.run("[gpus=0] true", options="--log-dir gpusched-runs/other")
    every = WebPage(page.box, "--all")
    try:
        assert every.url != page.url
        found = PageReader(every.get())
        assert "other" in found.text and EVIL in found.text and "counts" in found.text
        other = next(link for link in found.links if link.endswith("other"))
        assert "counts" not in PageReader(every.get(other)).text
    finally:
        every.server.signal(signal.SIGTERM)
        assert every.server.wait().code == -signal.SIGTERM


def test_ctrl_c_ends_it_and_the_address_stays(page: WebPage) -> None:
    url = page.url
    with page.ask("GET", "events") as answer:
        answer.readline()
        page.server.signal(signal.SIGINT)
        ended = page.server.wait(20)
    assert ended.code == 0 and "Traceback" not in ended.err
    page.restart()
    assert page.url == url and "counts" in page.get()
