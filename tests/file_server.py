"""A small HTTP server with the faults that real ones have: connections that drop, and ranges that are not known."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class FileServer:
    """Serves `files`, which may be changed; `asked` has the path and Range of every request."""

    def __init__(self, files: dict[str, bytes], address: str) -> None:
        self.files, self.address = files, address
        self.asked: list[tuple[str, str | None]] = []
        self.most: int | None = None  # bytes after which a connection drops
        self.drops: int | None = None  # how many connections drop; None is all
        self.knows_ranges = True

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        name, wanted = handler.path.lstrip("/"), handler.headers.get("Range")
        self.asked.append((name, wanted))
        content = self.files.get(name)
        if content is None:
            handler.send_error(404, "Not Found")
            return
        start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and self.knows_ranges else 0
        if start and start >= len(content):
            handler.send_response(416)
            handler.send_header("Content-Range", f"bytes */{len(content)}")
            handler.send_header("Content-Length", "0")
            handler.end_headers()
            return
        handler.send_response(206 if start else 200)
        if start:
            handler.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        handler.send_header("Content-Length", str(len(content) - start))
        handler.end_headers()
        with suppress(ConnectionError):  # who asked may have been interrupted
            handler.wfile.write(content[start:][: self._limit()])

    def _limit(self) -> int | None:
        if self.most is None or self.drops == 0:
            return None
        if self.drops is not None:
            self.drops -= 1
        return self.most


@contextmanager
def serve(files: dict[str, bytes]) -> Iterator[FileServer]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            files_server.answer(self)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        files_server = FileServer(files, f"http://127.0.0.1:{server.server_port}")
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield files_server
        finally:
            server.shutdown()
            thread.join()
