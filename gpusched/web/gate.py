"""The guard of the page: its user alone sees it, by its address, in a browser that was led there by no other page."""

from __future__ import annotations

import os
import re
import secrets
import socket
import sys
from contextlib import suppress

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_HERE = re.compile(r"(127\.0\.0\.1|localhost)(:[0-9]{1,5})?")  # whatever the port: a tunnel may begin at another one
METHODS = ("GET", "HEAD")
HEADERS = {
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class Gate:
    """Refuses every request but those of its user for what lies below the token, and gives all answers HEADERS."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app, self._token = app, token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_safely(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        if scope["type"] != "http":
            return
        status, text = self._judge(scope)
        app = self._app if status == 200 else PlainTextResponse(f"{text}\n", status, {"Allow": ", ".join(METHODS)})
        await app(scope, receive, send_safely)

    def _judge(self, scope: Scope) -> tuple[int, str]:
        """Return the status of the answer, and why it is not 200."""
        headers = Headers(scope=scope)
        hosts, origins = headers.getlist("host"), headers.getlist("origin")
        if len(hosts) != 1 or not _HERE.fullmatch(hosts[0]):
            return 421, "this page is at 127.0.0.1 alone"
        if any(origin != f"http://{hosts[0]}" for origin in origins):
            return 403, "other pages may not ask here"
        if _user_of(scope.get("client"), scope.get("server")) not in (None, 0, os.geteuid()):
            return 403, "this page is another user's"
        word = scope["path"].split("/", 2)[1] if scope["path"].startswith("/") else ""
        if not secrets.compare_digest(word.encode(), self._token):
            return 404, "there is nothing here; the address is the one that gpusched web prints"
        if scope["method"] not in METHODS:
            return 405, "this page changes nothing"
        return 200, ""


def _user_of(client: tuple[str, int] | None, server: tuple[str, int] | None) -> int | None:
    """Return the user whose process has the other end of a connection on this host; None if that cannot be told.

    That keeps out whoever learned the address: of a tunnel, the end here belongs to the user that logged in.
    """
    if client is None or server is None:
        return None
    with suppress(OSError, ValueError, IndexError):
        wanted = [_kernel_name(client), _kernel_name(server)]
        with open("/proc/net/tcp", encoding="ascii") as table:
            for line in table:
                words = line.split()
                if words[1:3] == wanted:
                    return int(words[7])
    return None


def _kernel_name(end: tuple[str, int]) -> str:
    """Return an end of a connection as the kernel's table names it."""
    step = -1 if sys.byteorder == "little" else 1
    return f"{socket.inet_aton(end[0])[::step].hex().upper()}:{end[1]:04X}"
