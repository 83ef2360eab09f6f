"""A small hub on 127.0.0.1: repositories from a map, and the faults that a real one may have."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Repository:
    """Files by name. `fault`: gated, private, busy (503), cut (half of each file)."""

    files: Mapping[str, bytes]
    fault: str = ""
    commit: str = COMMIT
    sizes: Mapping[str, int] = field(default_factory=dict)  # told instead of the true ones


@dataclass
class Hub:
    endpoint: str
    repositories: dict[str, Repository]
    fetched: list[str] = field(default_factory=list)
    tokens: set[str] = field(default_factory=set)


@contextmanager
def serve(repositories: dict[str, Repository]) -> Iterator[Hub]:
    """Serve these until the block ends."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self.answer(body=False)

        def do_GET(self) -> None:
            self.answer(body=True)

        def answer(self, *, body: bool) -> None:
            hub.tokens.add(self.headers.get("Authorization", ""))
            path = self.path.partition("?")[0].strip("/")
            parts = path.removeprefix("api/models/").split("/")
            repository = hub.repositories.get("/".join(parts[:2]))
            if repository is None:
                return self.fail(401, "RepoNotFound")
            if repository.fault == "private":
                return self.fail(401, "")
            if repository.fault == "busy":
                return self.fail(503, "")
            if path.startswith("api/"):
                revision = parts[3] if len(parts) > 3 else "main"
                if parts[2:3] == ["tree"]:
                    return self.send(
                        [
                            {"type": "file", "path": file, "size": len(data), "oid": "0"}
                            for file, data in repository.files.items()
                        ]
                    )
                if revision not in ("main", "v1", repository.commit):
                    return self.fail(404, "RevisionNotFound")
                return self.tell(repository, "/".join(parts[:2]))
            name = "/".join(parts[4:])
            if repository.fault == "gated":
                return self.fail(403, "GatedRepo")
            if name not in repository.files:
                return self.fail(404, "EntryNotFound")
            data = repository.files[name]
            self.send_response(200)
            self.send_header("ETag", f'"{hashlib.sha256(data).hexdigest()}"')
            self.send_header("X-Repo-Commit", repository.commit)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if body:
                hub.fetched.append(f"{parts[0]}/{parts[1]}/{name}")
                cut = repository.fault == "cut" and not name.endswith(".json")
                self.wfile.write(data[: len(data) // 2] if cut else data)
                self.close_connection = cut

        def tell(self, repository: Repository, name: str) -> None:
            siblings = [
                {"rfilename": file, "size": repository.sizes.get(file, len(data)), "blobId": "0"}
                for file, data in repository.files.items()
            ]
            self.send({"id": name, "modelId": name, "sha": repository.commit, "siblings": siblings})

        def send(self, document: object) -> None:
            text = json.dumps(document).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def fail(self, status: int, code: str) -> None:
            self.send_response(status)
            if code:
                self.send_header("X-Error-Code", code)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    hub = Hub(f"http://127.0.0.1:{server.server_address[1]}", repositories)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
