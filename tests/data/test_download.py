"""A download goes on where it ended, whatever happened, and says why where it cannot."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from file_server import FileServer, serve

from tutti.data import download as module
from tutti.data.dataset import SourceFailed
from tutti.data.download import download

CONTENT = bytes(range(256)) * 2000


def ignore(*_: object) -> None:
    pass


@pytest.fixture
def server() -> Iterator[FileServer]:
    with serve({"data.gz": CONTENT}) as server:
        yield server


@pytest.fixture
def part(tmp_path: Path) -> Path:
    return tmp_path / "data.gz.part"


def test_all_of_it(server: FileServer, part: Path) -> None:
    reports: list[tuple[int, int | None, str]] = []
    download(f"{server.address}/data.gz", part, lambda *report: reports.append(report))
    assert part.read_bytes() == CONTENT
    assert server.asked == [("data.gz", None)]
    assert reports[0] == (0, len(CONTENT), "data.gz from 127.0.0.1")
    assert reports[-1] == (len(CONTENT), len(CONTENT), "data.gz from 127.0.0.1")
    assert [done for done, _, _ in reports] == sorted(done for done, _, _ in reports)


def test_a_part_from_earlier_is_gone_on_with(server: FileServer, part: Path) -> None:
    part.write_bytes(CONTENT[:1000])
    download(f"{server.address}/data.gz", part, ignore)
    assert part.read_bytes() == CONTENT
    assert server.asked == [("data.gz", "bytes=1000-")]


def test_connections_that_drop_are_opened_again(server: FileServer, part: Path) -> None:
    server.most = 200_000
    download(f"{server.address}/data.gz", part, ignore)
    assert part.read_bytes() == CONTENT
    assert server.asked == [("data.gz", None), ("data.gz", "bytes=200000-"), ("data.gz", "bytes=400000-")]


def test_a_server_that_sends_nothing_more_is_given_up_and_the_part_kept(server: FileServer, part: Path) -> None:
    part.write_bytes(CONTENT[:1000])
    server.most = 0
    with pytest.raises(SourceFailed, match="the connection ended after 1000 of 512000 bytes"):
        download(f"{server.address}/data.gz", part, ignore)
    assert part.read_bytes() == CONTENT[:1000]


def test_a_server_without_ranges_begins_anew(server: FileServer, part: Path) -> None:
    server.knows_ranges = False
    part.write_bytes(b"x" * 1000)
    download(f"{server.address}/data.gz", part, ignore)
    assert part.read_bytes() == CONTENT


def test_a_server_without_ranges_that_always_drops_is_given_up(server: FileServer, part: Path) -> None:
    server.knows_ranges, server.most = False, 1000
    with pytest.raises(SourceFailed, match="ended after 1000 of 512000"):
        download(f"{server.address}/data.gz", part, ignore)
    assert len(server.asked) == 2


def test_a_part_that_is_complete_is_not_fetched_again(server: FileServer, part: Path) -> None:
    part.write_bytes(CONTENT)
    download(f"{server.address}/data.gz", part, ignore)
    assert part.read_bytes() == CONTENT
    assert server.asked == [("data.gz", f"bytes={len(CONTENT)}-")]


def test_a_part_longer_than_the_whole_is_thrown_away(server: FileServer, part: Path) -> None:
    part.write_bytes(CONTENT + b"more")
    download(f"{server.address}/data.gz", part, ignore)
    assert part.read_bytes() == CONTENT


def test_an_interruption_keeps_the_part(server: FileServer, part: Path) -> None:
    def interrupt(done: int, *_: object) -> None:
        if done > 100_000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        download(f"{server.address}/data.gz", part, interrupt)
    kept = part.read_bytes()
    assert 100_000 < len(kept) < len(CONTENT)
    assert CONTENT.startswith(kept)
    download(f"{server.address}/data.gz", part, ignore)
    assert part.read_bytes() == CONTENT
    assert server.asked[-1] == ("data.gz", f"bytes={len(kept)}-")


def test_an_answer_of_another_range_is_refused(server: FileServer, part: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    part.write_bytes(CONTENT[:1000])
    ask = module._ask
    monkeypatch.setattr(module, "_ask", lambda address, had: ask(address, had + 5))
    with pytest.raises(
        SourceFailed, match=r"asked for what comes after 1000 bytes, it answers with 'bytes 1005-511999/"
    ):
        download(f"{server.address}/data.gz", part, ignore)
    assert part.read_bytes() == CONTENT[:1000]


def test_a_file_that_is_not_there(server: FileServer, part: Path) -> None:
    with pytest.raises(SourceFailed, match="it answers 404 Not Found"):
        download(f"{server.address}/other.gz", part, ignore)
    assert not part.exists()


def test_nobody_listens(part: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        with pytest.raises(SourceFailed, match="Connection refused"):
            download(f"http://127.0.0.1:{taken.getsockname()[1]}/data.gz", part, ignore)


def test_a_name_that_nobody_knows(part: Path) -> None:
    with pytest.raises(SourceFailed, match=r"\w+"):
        download("http://no-such-host.invalid/data.gz", part, ignore)
    assert not part.exists()


def test_a_server_that_never_answers(part: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SILENCE", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(SourceFailed, match="timed out"):
        download(f"http://127.0.0.1:{silent.getsockname()[1]}/data.gz", part, ignore)


def test_a_server_that_speaks_something_else(part: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as odd:

        def answer() -> None:
            with odd.accept()[0] as connection:
                connection.recv(1000)
                connection.sendall(b"SSH-2.0-hello\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(SourceFailed, match="SSH"):
            download(f"http://127.0.0.1:{odd.getsockname()[1]}/data.gz", part, ignore)
        thread.join()
