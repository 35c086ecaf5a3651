"""A file gets its name when it is the right one; nothing else outlives the command but a partial download."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from sample_data import gzipped, listing, make_data_set, write

from tutti.data.dataset import SourceFailed
from tutti.data.shelf import Shelf, reserve
from tutti.errors import UserError

CONTENT = bytes(range(256)) * 8
DATA_SET = make_data_set({"one": CONTENT, "two": b"2"})
ONE, TWO = DATA_SET.files


def ignore(*_: object) -> None:
    pass


def test_a_file_is_kept_and_no_longer_missing(tmp_path: Path) -> None:
    reports: list[tuple[int, int | None, str]] = []
    shelf = Shelf(DATA_SET, tmp_path, lambda *report: reports.append(report))
    assert shelf.missing == [ONE, TWO]
    shelf.put(ONE, io.BytesIO(CONTENT))
    assert (tmp_path / "one").read_bytes() == CONTENT
    assert shelf.missing == [TWO]
    assert listing(tmp_path) == ["one"]
    assert reports == [(2048, 2048, "unpacking one")]


def test_what_is_there_is_missing_only_if_it_is_damaged(tmp_path: Path) -> None:
    write({"one": CONTENT[::-1], **gzipped({"two": b"2"})}, tmp_path)
    assert Shelf(DATA_SET, tmp_path, ignore).missing == [ONE]


@pytest.mark.parametrize(
    ("sent", "found"),
    [
        (CONTENT[::-1], "its one has 2048 bytes with sha256 "),
        (CONTENT[:-1], "its one has 2047 bytes with sha256 "),
        (CONTENT + b"!", "its one has more than 2048 bytes instead of 2048 with "),
        (b"", "its one has 0 bytes with sha256 e3b0c44298fc..."),
    ],
    ids=["other", "short", "long", "empty"],
)
def test_the_wrong_file_leaves_nothing(tmp_path: Path, sent: bytes, found: str) -> None:
    shelf = Shelf(DATA_SET, tmp_path, ignore)
    with pytest.raises(SourceFailed) as failure:
        shelf.put(ONE, io.BytesIO(sent))
    assert str(failure.value).startswith(found)
    assert f"instead of 2048 with {ONE.sha256[:12]}..." in str(failure.value)
    assert listing(tmp_path) == []
    assert shelf.missing == [ONE, TWO]


def test_a_stream_without_end_is_not_read_to_its_end(tmp_path: Path) -> None:
    class Endless(io.RawIOBase):
        def read(self, size: int = -1) -> bytes:
            return bytes(size)

    with pytest.raises(SourceFailed, match="more than 2048 bytes"):
        Shelf(DATA_SET, tmp_path, ignore).put(ONE, Endless())  # type: ignore[arg-type]


def test_a_workspace_is_gone_afterwards(tmp_path: Path) -> None:
    with Shelf(DATA_SET, tmp_path, ignore).workspace("npm") as work:
        (work / "archive").write_bytes(b"x")
        assert work.parent == tmp_path
    assert listing(tmp_path) == []
    assert not work.exists()


def test_clear_removes_drafts_and_parts_where_that_is_said(tmp_path: Path) -> None:
    shelf = Shelf(DATA_SET, tmp_path, ignore)
    write({"one.draft": b"", "mine": b""}, tmp_path)
    write({"deep": b""}, tmp_path / "npm.draft")
    shelf.part("one.gz").write_bytes(b"half")
    shelf.clear(parts=False)
    assert listing(tmp_path) == ["mine", "one.gz.part"]
    shelf.clear(parts=True)
    assert listing(tmp_path) == ["mine"]


def test_a_folder_is_filled_by_one_at_a_time(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    sentence = f"another `tutti data get` is filling {folder}; wait"
    with reserve(folder), pytest.raises(UserError, match=sentence), reserve(folder):
        pass
    with reserve(folder):
        assert listing(tmp_path) == []
