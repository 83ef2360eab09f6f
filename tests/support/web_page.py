"""The page of `gpusched web` as a user starts it, and what it answers. Asserts little."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from tests.support.box import Box, Running, wait_for
from tests.views.test_html import Reader


class WebPage:
    """The server of a page, and what it answers."""

    def __init__(self, box: Box, *words: str) -> None:
        self.box, self.words = box, words
        self.server: Running = box.start("web", *words)
        self.url = self.wait_for_url()

    def wait_for_url(self) -> str:
        def find() -> str:
            found = re.match(r"http://127\.0\.0\.1:\S+(?=\n)", self.server.said())
            assert found or self.server.process.poll() is None, self.server.said()
            return found.group() if found else ""

        return wait_for(find)

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


class PageReader(Reader):
    """The texts of a page, and its elements with their attributes."""

    def __init__(self, page: str) -> None:
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        super().__init__(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        super().handle_starttag(tag, attrs)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())
