"""A box with a queue whose names and logs are hostile, and its page as a user starts it."""

from __future__ import annotations

import contextlib
import http.client
import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.support.box import SIMJOB, Box, Running, wait_for

EVIL = "<img src=x onerror=alert(1)>"
LIST = (
    f"echo '</pre><script>alert(2)</script>'; exit 3 # {EVIL}",
    "[gpus=0] true",
    f"[mem=20G tag=a] {SIMJOB} --mem 9000 --hold 600 --util 30",
    f'[gpus=0 name=counts] for n in $(seq 3000); do echo "step $n {EVIL}"; sleep 0.2; done',
    *(f"[gpus=2 tag=late] {SIMJOB} --mem 30000 --hold 600 # {n}" for n in range(3)),
)


class WebPage:
    """The server of a page, and what it answers."""

    def __init__(self, box: Box, *words: str) -> None:
        self.box, self.words = box, words
        self.server: Running = box.start("web", *words)
        self.url = self.wait_for_url()

    def wait_for_url(self) -> str:
        wait_for(lambda: "\n" in self.server.said() or self.server.process.poll() is not None)
        url = self.server.said().split("\n")[0]
        assert url.startswith("http://127.0.0.1:"), self.server.said()
        return url

    def restart(self) -> None:
        self.server = self.box.start("web", *self.words)
        self.url = self.wait_for_url()

    @property
    def port(self) -> int:
        return urlsplit(self.url).port or 0

    @property
    def root(self) -> str:
        return urlsplit(self.url).path

    @contextlib.contextmanager
    def ask(self, method: str = "GET", below: str = "", **headers: str) -> Iterator[http.client.HTTPResponse]:
        """Send a request for what lies below the token, or for a path; the answer, before it is read."""
        path = below if below.startswith(("/", "*")) else self.root + below
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)) as connection:
            connection.putrequest(method, path, skip_host="Host" in headers)
            for name, value in headers.items():
                connection.putheader(name, value)
            connection.endheaders()
            with connection.getresponse() as answer:
                yield answer

    def get(self, below: str = "", **headers: str) -> str:
        with self.ask("GET", below, **headers) as answer:
            assert answer.status == 200
            return answer.read().decode()

    def events(self, query: str = "", number: int = 1) -> list[dict[str, Any]]:
        """Return the first events of a stream."""
        found: list[dict[str, Any]] = []
        with self.ask("GET", f"events{query}") as answer:
            assert answer.headers["Content-Type"].startswith("text/event-stream")
            while len(found) < number:
                line = answer.readline().decode()
                if line.startswith("data: "):
                    found.append(json.loads(line[6:]))
        return found


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebPage]:
    with Box(tmp_path_factory.mktemp("web"), "2") as box:
        path = f"gpusched-runs/{EVIL}"
        box.start("run", box.write(*LIST), "--log-dir", path)
        wait_for(lambda: box.states(EVIL)[:4] == ["failed", "succeeded", "running", "running"])
        yield WebPage(box, "-q", path)
