"""A hub on loopback that speaks the few requests by which a model is downloaded."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit


@dataclass(slots=True, kw_only=True)
class Repository:
    """One model on the hub."""

    files: dict[str, bytes]
    sizes: dict[str, int] = field(default_factory=dict)
    """What it says of some files instead of their size."""
    revisions: tuple[str, ...] = ("main",)
    token: str | None = None
    """Who wants the files must bring it."""
    broken: int | None = None
    """Every answer is an error with this status."""

    @property
    def commit(self) -> str:
        return hashlib.sha1(repr(sorted(self.files.items())).encode()).hexdigest()


@dataclass(slots=True, kw_only=True)
class LocalHub:
    """A running hub."""

    endpoint: str
    repositories: dict[str, Repository]
    asked: list[str] = field(default_factory=list)
    """Paths of files whose content was sent."""


@contextmanager
def running_hub(**repositories: Repository) -> Iterator[LocalHub]:
    """Repositories by name; all belong to `owner`. It is gone when the block ends."""
    hub = LocalHub(endpoint="", repositories={f"owner/{name}": one for name, one in repositories.items()})
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    hub.endpoint = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    hub: LocalHub

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        parts = unquote(urlsplit(self.path).path).strip("/").split("/")
        if parts[:2] == ["api", "models"]:
            self._about("/".join(parts[2:4]), parts[4:])
        elif parts[2:3] == ["resolve"]:
            self._file("/".join(parts[:2]), parts[3], "/".join(parts[4:]))
        else:
            self._send(404, b"", {})

    def log_message(self, format: str, *args: Any) -> None:
        """Tests look at `asked` instead."""

    def _about(self, repo_id: str, rest: list[str]) -> None:
        repository = self._find(repo_id, rest[1] if rest else "main")
        if repository is None:
            return
        sizes = {name: len(content) for name, content in repository.files.items()} | repository.sizes
        oids = {name: hashlib.sha1(name.encode()).hexdigest() for name in sizes}
        if rest[:1] == ["tree"]:
            answer: Any = [{"type": "file", "path": n, "size": s, "oid": oids[n]} for n, s in sizes.items()]
        else:
            siblings = [{"rfilename": n, "size": s, "blobId": oids[n]} for n, s in sizes.items()]
            answer = {"id": repo_id, "sha": repository.commit, "siblings": siblings}
        self._send(200, json.dumps(answer).encode(), {"Content-Type": "application/json"})

    def _file(self, repo_id: str, revision: str, name: str) -> None:
        repository = self._find(repo_id, revision)
        if repository is None:
            return
        if repository.token is not None and self.headers["Authorization"] != f"Bearer {repository.token}":
            return self._send(403, b"", {"X-Error-Code": "GatedRepo"})
        content = repository.files[name]
        etag = hashlib.sha1(content).hexdigest()
        if self.command == "GET":
            self.hub.asked.append(name)
        self._send(200, content, {"ETag": f'"{etag}"', "X-Repo-Commit": repository.commit})

    def _find(self, repo_id: str, revision: str) -> Repository | None:
        repository = self.hub.repositories.get(repo_id)
        if repository is None:
            self._send(401, b"", {"X-Error-Code": "RepoNotFound"})
        elif repository.broken is not None:
            self._send(repository.broken, b"", {})
        elif revision not in (*repository.revisions, repository.commit):
            self._send(404, b"", {"X-Error-Code": "RevisionNotFound"})
        else:
            return repository
        return None

    def _send(self, status: int, content: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)
