"""One file over HTTP, gone on with where an earlier download ended.

A connection that breaks is opened again as long as every one brings something. What has come lies in the .part file and
stays there through an interruption; the next download asks for the rest of it (RFC 9110, Range).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from tutti.data.dataset import Progress, SourceFailed

_SILENCE = 5.0  # seconds without an answer after which a server counts as dead
_CHUNK = 1 << 18
_PARTIAL, _NOTHING_LEFT = 206, 416


def download(address: str, part: Path, progress: Progress) -> None:
    """All that lies at the address, into the file `part`."""
    while True:
        had = _size(part)
        total = _go_on(address, part, progress)
        if total is None or _size(part) == total:
            return
        if _size(part) <= had:
            raise SourceFailed(f"the connection ended after {_size(part)} of {total} bytes")


def _go_on(address: str, part: Path, progress: Progress) -> int | None:
    """Add to the file what one connection brings; returns the size of the whole, where the server says it."""
    had = _size(part)
    try:
        response = _ask(address, had)
    except HTTPError as error:
        if error.code != _NOTHING_LEFT or not had:
            raise SourceFailed(f"it answers {error.code} {error.reason}") from None
        if _total(error.headers.get("Content-Range")) == had:
            return had
        part.unlink()  # longer than the whole: it is a part of something else
        return _go_on(address, part, progress)
    with response:
        had, total = _agree(response, had)
        text = f"{part.stem} from {urlsplit(address).hostname}"
        with part.open("r+b" if had else "wb") as out:
            out.seek(had)
            progress(had, total, text)
            for chunk in _chunks(response):
                out.write(chunk)
                had += len(chunk)
                progress(had, total, text)
    return total


def _ask(address: str, had: int) -> HTTPResponse:
    request = Request(address, headers={"User-Agent": "tutti"})
    if had:
        request.add_header("Range", f"bytes={had}-")
    try:
        return urlopen(request, timeout=_SILENCE)  # type: ignore[no-any-return]
    except HTTPError:
        raise
    except URLError as error:
        raise SourceFailed(_reason(error.reason)) from None
    except (OSError, HTTPException) as error:
        raise SourceFailed(_reason(error)) from None


def _agree(response: HTTPResponse, had: int) -> tuple[int, int | None]:
    """(where the answer begins, size of the whole): a server that knows no ranges begins at 0."""
    if response.status == _PARTIAL:
        told = response.headers.get("Content-Range", "")
        if not told.startswith(f"bytes {had}-"):
            raise SourceFailed(f"asked for what comes after {had} bytes, it answers with '{told}'")
        return had, _total(told)
    length = response.headers.get("Content-Length")
    return 0, int(length) if length else None


def _chunks(response: HTTPResponse) -> Iterator[bytes]:
    """What comes until the connection ends, well or badly."""
    while True:
        try:
            chunk = response.read1(_CHUNK)
        except (OSError, HTTPException):
            return
        if not chunk:
            return
        yield chunk


def _total(content_range: str | None) -> int | None:
    """The size of the whole in a Content-Range such as 'bytes 100-199/200' or 'bytes */200'."""
    match = re.search(r"/(\d+)$", content_range or "")
    return int(match[1]) if match else None


def _reason(error: object) -> str:
    text = getattr(error, "strerror", None) or str(error)
    return text or type(error).__name__


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
