"""From the first source that has it; whatever happens, no file stands under its name that is not the right one."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from file_server import FileServer, serve
from sample_data import gzipped, idx_files, listing, make_data_set, tarred, write

from tutti.data.dataset import SourceFailed
from tutti.data.fetch import Fetched, get
from tutti.data.shelf import Shelf, reserve
from tutti.data.sources import Gzipped, Installed, Source, Tarred
from tutti.errors import UserError

FILES = idx_files()
ONE, TWO, *_ = FILES


class Broken(Source):
    """Does harm to the shelf or fails, as it is told."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __str__(self) -> str:
        return "a broken source"

    def fetch(self, shelf: Shelf) -> None:
        (shelf.folder / f"{ONE}.draft").write_bytes(b"half")
        shelf.part("data.tar.gz").write_bytes(b"half")
        raise self.error


@pytest.fixture
def server() -> Iterator[FileServer]:
    with serve({**gzipped(FILES), "data.tar.gz": tarred(FILES, "data")}) as server:
        yield server


def ignore(*_: object) -> None:
    pass


def assert_whole(folder: Path) -> None:
    assert listing(folder) == sorted(FILES)
    assert {name: (folder / name).read_bytes() for name in FILES} == FILES


# --- from where -------------------------------------------------------------------------------------------------------


def test_the_first_source_that_has_it(server: FileServer, tmp_path: Path) -> None:
    first, good = Gzipped(f"{server.address}/other"), Gzipped(server.address)
    texts: list[str] = []
    done = get(make_data_set(FILES, first, good), tmp_path, lambda *report: texts.append(report[2]))
    assert done == Fetched(tmp_path / "mnist", good)
    assert_whole(tmp_path / "mnist")
    steps = list(dict.fromkeys(texts))
    assert steps[:4] == [f"asking {first}", f"asking {good}", f"{ONE}.gz from 127.0.0.1", f"unpacking {ONE}"]


def test_what_is_there_and_whole_is_left_alone(tmp_path: Path) -> None:
    place = write(FILES, tmp_path / "MNIST" / "raw")
    assert get(make_data_set(FILES), tmp_path, ignore) == Fetched(place, None)
    assert listing(tmp_path) == sorted(f"MNIST/raw/{name}" for name in FILES)


def test_only_what_is_missing_or_damaged_is_fetched(server: FileServer, tmp_path: Path) -> None:
    write({**FILES, ONE: b"damaged"}, tmp_path / "mnist")
    (tmp_path / "mnist" / TWO).unlink()
    get(make_data_set(FILES, Gzipped(server.address)), tmp_path, ignore)
    assert [name for name, _ in server.asked] == [f"{ONE}.gz", f"{TWO}.gz"]
    assert_whole(tmp_path / "mnist")


def test_sources_complete_each_other(server: FileServer, tmp_path: Path) -> None:
    half = write({name: FILES[name] for name in (ONE, TWO)}, tmp_path / "half")
    get(make_data_set(FILES, Installed(str(half)), Gzipped(server.address)), tmp_path, ignore)
    assert len(server.asked) == 2
    assert_whole(tmp_path / "mnist")


def test_the_default_is_the_cache(server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TUTTI_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    get(make_data_set(FILES, Gzipped(server.address)), None, ignore)
    assert_whole(tmp_path / "tutti" / "mnist")


# --- interruptions ----------------------------------------------------------------------------------------------------


def test_an_interrupted_download_is_gone_on_with(server: FileServer, tmp_path: Path) -> None:
    def interrupt(done: int, *_: object) -> None:
        if done > 100:
            raise KeyboardInterrupt

    dataset = make_data_set(FILES, Tarred(f"{server.address}/data.tar.gz", "data"))
    server.most = 5000
    with pytest.raises(KeyboardInterrupt):
        get(dataset, tmp_path, interrupt)
    assert listing(tmp_path) == ["mnist/data.tar.gz.part"]
    server.most = None
    get(dataset, tmp_path, ignore)
    assert server.asked[-1] == ("data.tar.gz", "bytes=5000-")
    assert_whole(tmp_path / "mnist")


def test_an_interruption_while_unpacking_leaves_no_draft(server: FileServer, tmp_path: Path) -> None:
    def interrupt(_done: int, _total: int | None, text: str) -> None:
        if text == f"unpacking {TWO}":
            raise KeyboardInterrupt

    dataset = make_data_set(FILES, Tarred(f"{server.address}/data.tar.gz", "data"))
    with pytest.raises(KeyboardInterrupt):
        get(dataset, tmp_path, interrupt)
    assert listing(tmp_path / "mnist") == sorted(["data.tar.gz.part", ONE])


def test_drafts_of_a_killed_process_are_cleared(server: FileServer, tmp_path: Path) -> None:
    write({"cache": b"left"}, tmp_path / "mnist" / "npm.draft")
    write({f"{TWO}.draft": b"left", "old.gz.part": b"left"}, tmp_path / "mnist")
    get(make_data_set(FILES, Gzipped(server.address)), tmp_path, ignore)
    assert_whole(tmp_path / "mnist")


# --- refusals ---------------------------------------------------------------------------------------------------------


def test_no_source_answers(server: FileServer, tmp_path: Path) -> None:
    write({TWO: FILES[TWO]}, tmp_path / "mnist")
    wrong = write({ONE: FILES[ONE][::-1]}, tmp_path / "wrong")
    sources = (Gzipped(f"{server.address}/other"), Installed(str(wrong)), Broken(SourceFailed("not today")))
    with pytest.raises(UserError) as error:
        get(make_data_set(FILES, *sources), tmp_path, ignore)
    sentence, *reasons = str(error.value).splitlines()
    assert sentence == (
        f"cannot fetch mnist from any of its 3 sources; put these files into {tmp_path}/mnist yourself, as they are or "
        f"as .gz: {ONE}, t10k-images-idx3-ubyte, t10k-labels-idx1-ubyte"
    )
    assert reasons[0] == f"  {server.address}/other: it answers 404 Not Found"
    assert reasons[1].startswith(f"  {wrong}: its {ONE} has 9424 bytes with sha256")
    assert reasons[2:] == ["  a broken source: not today"]
    assert listing(tmp_path / "mnist") == ["data.tar.gz.part", TWO]


def test_the_files_put_there_by_hand_are_taken(tmp_path: Path) -> None:
    dataset = make_data_set(FILES, Broken(SourceFailed("not today")))
    write(gzipped(FILES), tmp_path / "mnist")
    assert get(dataset, tmp_path, ignore).source is None


@pytest.mark.parametrize("suffix", [".part", ".draft"])
def test_a_full_disk(server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str) -> None:
    real = Path.open

    def open_on_a_full_disk(path: Path, mode: str = "r", *args: Any) -> Any:
        file = real(path, mode, *args)
        if path.suffix == suffix and mode != "rb":
            file.write(b"begun")
            with real(Path("/dev/full"), "wb") as full:
                os.dup2(full.fileno(), file.fileno())
        return file

    monkeypatch.setattr(Path, "open", open_on_a_full_disk)
    with pytest.raises(UserError) as error:
        get(make_data_set(FILES, Gzipped(server.address)), tmp_path, ignore)
    room = f"{2 * sum(map(len, FILES.values())) / 1e6:.0f} MB"
    assert str(error.value) == (
        f"the disk of {tmp_path}/mnist is full: fetching mnist takes up to {room} there; "
        "make room or choose another folder with --data DIR"
    )
    assert listing(tmp_path) == []


def test_a_disk_that_is_full_for_another_program(tmp_path: Path) -> None:
    dataset = make_data_set(FILES, Broken(OSError(errno.ENOSPC, "No space left on device")))
    with pytest.raises(UserError, match=f"the disk of {tmp_path}/mnist is full"):
        get(dataset, tmp_path, ignore)
    assert listing(tmp_path) == []


def test_a_folder_that_is_not_ours_to_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(UserError) as error:
        get(make_data_set(FILES), tmp_path, ignore)
    sentence = f"cannot write to {tmp_path}/mnist: Permission denied; choose another folder with --data DIR"
    assert str(error.value) == sentence


def test_a_file_where_the_folder_should_be(tmp_path: Path) -> None:
    (tmp_path / "mnist").write_text("mine")
    with pytest.raises(UserError, match=f"cannot write to {tmp_path}/mnist: File exists; choose another folder"):
        get(make_data_set(FILES), tmp_path, ignore)
    assert (tmp_path / "mnist").read_text() == "mine"


def test_two_at_once(tmp_path: Path) -> None:
    with reserve(tmp_path / "mnist"), pytest.raises(UserError, match="another `tutti data get` is filling"):
        get(make_data_set(FILES), tmp_path, ignore)
