"""A data set is found where people keep it, and never taken for another one."""

from __future__ import annotations

from pathlib import Path

import pytest
from sample_data import IDX_NAMES, gzipped, idx_files, make_data_set, write

from tutti.data.store import command, find, find_whole, home, list_faults, places
from tutti.errors import UserError

FILES = idx_files()
DATA_SET = make_data_set(FILES)


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No data of the person who runs the tests."""
    monkeypatch.delenv("TUTTI_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


# --- where ------------------------------------------------------------------------------------------------------------


def test_the_cache_is_the_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert home(DATA_SET, None) == tmp_path / "cache" / "tutti" / "mnist"
    assert places(DATA_SET, None) == [home(DATA_SET, None)]
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert home(DATA_SET, None) == tmp_path / ".cache" / "tutti" / "mnist"


def test_the_environment_comes_before_the_cache_and_a_folder_before_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TUTTI_DATA", "~/data")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert home(DATA_SET, None) == tmp_path / "data" / "mnist"
    assert home(DATA_SET, tmp_path / "given") == tmp_path / "given" / "mnist"


@pytest.mark.parametrize("layout", ["mnist", ".", "MNIST/raw"])
@pytest.mark.parametrize("through", ["folder", "environment"])
def test_every_layout_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: str, through: str) -> None:
    place = write(FILES, tmp_path / layout)
    if through == "environment":
        monkeypatch.setenv("TUTTI_DATA", str(tmp_path))
    folder = tmp_path if through == "folder" else None
    assert find(DATA_SET, folder) == {name: place / name for name in FILES}
    assert find_whole(DATA_SET, folder) == place


def test_gzipped_files_are_found_and_plain_ones_come_first(tmp_path: Path) -> None:
    write(gzipped(FILES), tmp_path)
    assert find(DATA_SET, tmp_path) == {name: tmp_path / f"{name}.gz" for name in FILES}
    assert find_whole(DATA_SET, tmp_path) == tmp_path
    write(FILES, tmp_path)
    assert find(DATA_SET, tmp_path) == {name: tmp_path / name for name in FILES}


def test_its_own_folder_comes_first(tmp_path: Path) -> None:
    write(FILES, tmp_path)
    write(FILES, tmp_path / "mnist")
    assert find(DATA_SET, tmp_path)[IDX_NAMES[0]].parent == tmp_path / "mnist"


# --- what is not there ------------------------------------------------------------------------------------------------


def test_nothing_there_says_where_it_looked(tmp_path: Path) -> None:
    with pytest.raises(UserError) as error:
        find(DATA_SET, None)
    looked = tmp_path / "cache" / "tutti" / "mnist"
    assert str(error.value) == (
        f"the data set mnist is not here: looked in {looked}; fetch it with: tutti data get mnist"
    )
    folder = tmp_path / "my data"
    with pytest.raises(UserError) as error:
        find(DATA_SET, folder)
    assert f"looked in {folder}/mnist, {folder}, {folder}/MNIST/raw; " in str(error.value)
    assert str(error.value).endswith(f"tutti data get mnist --data '{folder}'")


def test_a_file_that_is_missing_is_named(tmp_path: Path) -> None:
    (write(FILES, tmp_path) / IDX_NAMES[2]).unlink()
    with pytest.raises(UserError, match=f"mnist is not here: {tmp_path} has no {IDX_NAMES[2]}; fetch it with"):
        find(DATA_SET, tmp_path)
    assert find_whole(DATA_SET, tmp_path) is None
    assert list_faults(DATA_SET, tmp_path) == [f"{IDX_NAMES[2]} is missing"]


def test_another_data_set_under_the_same_names_is_refused(tmp_path: Path) -> None:
    other = {**FILES, IDX_NAMES[3]: FILES[IDX_NAMES[3]][:-1] + b"\x09"}
    write(other, tmp_path)
    with pytest.raises(UserError, match=f"{tmp_path}/{IDX_NAMES[3]} has another checksum than that of mnist; fetch it"):
        find(DATA_SET, tmp_path)
    write(FILES, tmp_path / "MNIST" / "raw")
    assert find(DATA_SET, tmp_path)[IDX_NAMES[0]].parent == tmp_path / "MNIST" / "raw"


def test_a_data_set_of_ones_own_in_the_format_may_be_used(tmp_path: Path) -> None:
    write(idx_files(train=20, test=5), tmp_path)
    assert set(find(DATA_SET, tmp_path)) == set(FILES)
    assert find_whole(DATA_SET, tmp_path) is None


@pytest.mark.parametrize("damage", [b"", b"short", FILES[IDX_NAMES[0]][::-1]], ids=["empty", "short", "other"])
def test_a_damaged_file_is_not_whole(tmp_path: Path, damage: bytes) -> None:
    write({**FILES, IDX_NAMES[0]: damage}, tmp_path)
    assert list_faults(DATA_SET, tmp_path) == [f"{IDX_NAMES[0]} is damaged"]
    assert find_whole(DATA_SET, tmp_path) is None


def test_a_gzipped_file_that_cannot_be_unpacked_is_damaged(tmp_path: Path) -> None:
    write({**gzipped(FILES), f"{IDX_NAMES[0]}.gz": b"no gzip"}, tmp_path)
    assert list_faults(DATA_SET, tmp_path) == [f"{IDX_NAMES[0]} is damaged"]


def test_the_command_names_the_folder_only_where_one_was_given() -> None:
    assert command(DATA_SET, None) == "tutti data get mnist"
    assert command(DATA_SET, Path("/data")) == "tutti data get mnist --data /data"
