"""`tutti data`: what a person types and sees."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from file_server import FileServer, serve
from sample_data import gzipped, idx_files, listing, make_data_set, write

from tutti.cli import main
from tutti.data.shelf import Shelf
from tutti.data.sources import Gzipped, Source
from tutti.tasks.mnist import Mnist

SOURCE = Path(__file__).parents[2] / "src"
FILES = idx_files()


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No data of the person who runs the tests."""
    monkeypatch.delenv("TUTTI_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FileServer]:
    """Has a small MNIST, which is the one there is."""
    with serve(gzipped(FILES)) as server:
        monkeypatch.setattr(Mnist, "data_set", make_data_set(FILES, Gzipped(server.address)))
        yield server


# --- get --------------------------------------------------------------------------------------------------------------


def test_get_fetches_once(server: FileServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "get", "mnist", "mnist"]) == 0
    folder = tmp_path / "cache" / "tutti" / "mnist"
    assert listing(folder) == sorted(FILES)
    said = capsys.readouterr()
    assert said.out == f"mnist is in {folder} now, checked; it came from {server.address}\n"
    steps = said.err.splitlines()
    assert steps[:2] == [f"mnist: asking {server.address}", "mnist: train-images-idx3-ubyte.gz from 127.0.0.1"]
    assert len(steps) == 1 + 2 * len(FILES)
    assert main(["data", "get", "mnist"]) == 0
    assert capsys.readouterr().out == f"mnist is in {folder} already, whole and checked\n"
    assert len(server.asked) == len(FILES)


@pytest.mark.usefixtures("server")
def test_get_into_a_folder_quietly(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "get", "mnist", "--data", str(tmp_path / "mine"), "--quiet"]) == 0
    assert listing(tmp_path) == sorted(f"mine/mnist/{name}" for name in FILES)
    said = capsys.readouterr()
    assert f"mnist is in {tmp_path}/mine/mnist now" in said.out
    assert said.err == ""


@pytest.mark.usefixtures("server")
def test_a_terminal_gets_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes, speed and time left, on a line that is gone when it is over."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w") as terminal, monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", terminal)
        assert main(["data", "get", "mnist"]) == 0
    shown = b""
    while True:
        try:
            shown += os.read(ours, 1 << 16)
        except OSError:  # how a terminal says that the other end is closed
            break
    os.close(ours)
    assert "mnist  unpacking t10k-labels-idx1-ubyte" in shown.decode()
    assert "━━━━━" in shown.decode()
    assert "16/16 bytes" in shown.decode()


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("mnst", "did you mean 'mnist'?"),
        ("CIFAR10", "did you mean 'cifar10'?"),
        ("fashion_mnist", "did you mean 'fashion-mnist'?"),
        ("zzz", "there is cifar10, fashion-mnist, mnist"),
    ],
)
def test_an_unknown_name_before_anything_is_fetched(
    server: FileServer, capsys: pytest.CaptureFixture[str], name: str, advice: str
) -> None:
    assert main(["data", "get", "mnist", name]) == 2
    assert capsys.readouterr().err == f"tutti: there is no data set '{name}' to fetch; {advice}\n"
    assert server.asked == []


def test_no_source_answers(server: FileServer, capsys: pytest.CaptureFixture[str]) -> None:
    server.files.clear()
    assert main(["data", "get", "mnist", "--quiet"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("tutti: cannot fetch mnist from any of its 1 sources; put these files into ")
    assert said.endswith(f"\n  {server.address}: it answers 404 Not Found\n")


def test_an_interruption_leaves_what_can_be_gone_on_with(
    server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Interrupted(Source):
        def fetch(self, shelf: Shelf) -> None:
            shelf.part("train-images-idx3-ubyte.gz").write_bytes(whole[:1000])
            (shelf.folder / "train-images-idx3-ubyte.draft").write_bytes(b"half")
            raise KeyboardInterrupt

    whole = server.files["train-images-idx3-ubyte.gz"]
    with monkeypatch.context() as patch:
        patch.setattr(Mnist, "data_set", make_data_set(FILES, Interrupted()))
        assert main(["data", "get", "mnist"]) == 130
    assert listing(tmp_path) == ["cache/tutti/mnist/train-images-idx3-ubyte.gz.part"]
    assert "interrupted" in capsys.readouterr().err
    assert main(["data", "get", "mnist"]) == 0
    assert server.asked[0] == ("train-images-idx3-ubyte.gz", "bytes=1000-")
    assert listing(tmp_path / "cache" / "tutti" / "mnist") == sorted(FILES)


# --- list -------------------------------------------------------------------------------------------------------------


def rows(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, dict[str, object]]:
    assert main(["data", "list", "--json", "-", *arguments]) == 0
    return {row["name"]: row for row in json.loads(capsys.readouterr().out)}


@pytest.mark.usefixtures("server")
def test_list_says_what_is_where(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert set(rows([], capsys)) >= {"cifar10", "fashion-mnist", "mnist"}
    folder = tmp_path / "cache" / "tutti" / "mnist"
    empty = rows([], capsys)["mnist"]
    assert (empty["folder"], empty["complete"], empty["get"]) == (None, False, "tutti data get mnist")
    write({name: FILES[name] for name in list(FILES)[:3]}, folder)
    begun = rows([], capsys)["mnist"]
    assert (begun["folder"], begun["complete"]) == (str(folder), False)
    assert begun["faults"] == ["t10k-labels-idx1-ubyte is missing"]
    write(FILES, folder)
    whole = rows([], capsys)["mnist"]
    assert (whole["folder"], whole["complete"], whole["faults"]) == (str(folder), True, [])
    assert (whole["train"], whole["test"], whole["classes"]) == (12, 8, 10)
    assert whole["bytes"] == sum(map(len, FILES.values()))


@pytest.mark.usefixtures("server")
def test_list_as_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(FILES, tmp_path / "d" / "mnist")
    write({"test_batch.bin": b""}, tmp_path / "d" / "cifar10")
    assert main(["data", "list", "--data", str(tmp_path / "d")]) == 0
    written = capsys.readouterr().out
    table = " ".join(written.split())
    assert "data set train test classes size where" in table
    assert f"mnist1281015.4KiB{tmp_path}/d/mnist(complete)" in "".join(written.split())  # paths of any length
    assert "fashion-mnist 60,000 10,000 10 52.4 MiB not here: tutti data get fashion-mnist --data" in table
    assert "(not complete: data_batch_1.bin is missing, data_batch_2.bin is" in table


def test_list_to_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "list", "--json", str(tmp_path / "list.json")]) == 0
    found = {row["name"]: row for row in json.loads((tmp_path / "list.json").read_text())}
    assert found["cifar10"]["files"][0]["md5"] == "5dd7e06a14cb22eb9f671a540d1b7c25"
    assert "cifar10" in capsys.readouterr().out
    assert main(["data", "list", "--json", str(tmp_path / "no" / "list.json")]) == 2


# --- help -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [["data"], ["data", "get"], ["data", "list"]])
def test_help_has_examples_and_imports_nothing_heavy(command: list[str]) -> None:
    program = (
        "import sys; from tutti.cli import main\n"
        f"try: main({[*command, '--help']!r})\n"
        "except SystemExit as end: assert end.code == 0\n"
        "assert 'torch' not in sys.modules and 'rich' not in sys.modules"
    )
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert f"\n  tutti {' '.join(command)}" in done.stdout.partition("examples:")[2]


@pytest.mark.parametrize("arguments", [["data"], ["data", "get"], ["data", "fetch", "mnist"]])
def test_a_mistake_in_the_command_is_one_sentence(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith("tutti: ")
    assert said.count("\n") == 1
    assert "--help" in said
