"""A full disk, or one that cannot be written to, costs no measurement: the table is printed, records go elsewhere."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from launching import with_tests
from sample_records import make_record

from tutti.cli import main
from tutti.files import Refuge, read_text
from tutti.lab.record import Record
from tutti.lab.saving import Saving

RUN = ["run", "ddp", "--workers", "2", "--samples", "64", "--steps", "4", "--quiet"]


def tutti_on_small_disk(
    disk: Path, size: str, *words: str, before: str = "", **environment: str
) -> subprocess.CompletedProcess[str]:
    """`tutti WORDS` where `disk` is a file system of its own, of so many bytes."""
    disk.mkdir(exist_ok=True)
    script = f'mount -t tmpfs -o size={size} none "$0" && {before or "true"} && exec "$@"'
    command = ["unshare", "-Urm", "sh", "-c", script, str(disk), sys.executable, "-m", "tutti", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=with_tests(environment))


def check_table_and_rescued(result: subprocess.CompletedProcess[str], where: Path) -> Record:
    """The table is there, one record is at the place that the sentence names, and there is no traceback."""
    assert result.returncode == 1, result.stderr
    assert "accuracy" in result.stdout
    assert "Traceback" not in result.stderr
    found = re.search(r"cannot write \S+\.json: No space left on device; it was written to (\S+\.json) ", result.stderr)
    assert found is not None, result.stderr
    assert Path(found[1]).is_relative_to(where)
    return Record.load(Path(found[1]))


def test_a_disk_that_is_full_in_mid_run(tmp_path: Path) -> None:
    """Neither record nor model, picture or report fit; record and model are written elsewhere."""
    spare = tmp_path / "spare"
    spare.mkdir()
    disk = tmp_path / "disk"
    words = [*RUN, "--out", str(disk / "out"), "--save", str(disk / "model.pt")]
    begun = 'while [ ! -d "$0/out" ] || [ -e "$0/out/.tutti" ]; do sleep 0.05; done'
    fill = f'{{ ({begun}; cat /dev/zero > "$0/other") 2> /dev/null & }}'
    result = tutti_on_small_disk(disk, "200k", *words, before=fill, TMPDIR=str(spare))
    assert check_table_and_rescued(result, spare).steps == 4
    assert re.search(r"cannot write \S+model.pt: No space left on device; it was written to \S+model.pt", result.stderr)
    (model,) = spare.glob("tutti-unsaved-*/model.pt")
    assert model.stat().st_size > 200_000


def test_a_full_disk_at_the_start_is_one_sentence(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    words = [*RUN, "--out", str(disk / "out")]
    result = tutti_on_small_disk(disk, "8k", *words)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == f"tutti: cannot write to {disk}/out: No space left on device; choose another --out\n"


def test_a_disk_that_cannot_be_written_to_is_one_sentence(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    result = tutti_on_small_disk(disk, "1m", *RUN, "--out", str(disk), before='mount -o remount,ro "$0"')
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == f"tutti: cannot write to {disk}: Read-only file system; choose another --out\n"


def test_full_shared_memory_and_temporary_folder_end_nothing(tmp_path: Path) -> None:
    small = "mount -t tmpfs -o size=4k none /dev/shm && head -c 4096 /dev/zero > /dev/shm/full"
    small += ' && head -c 99999 /dev/zero > "$0/full" 2>/dev/null; true'
    disk, out = tmp_path / "disk", tmp_path / "out"
    result = tutti_on_small_disk(disk, "8k", *RUN, "--out", str(out), before=small, TMPDIR=str(disk))
    assert result.returncode == 0, result.stderr
    assert len(list(out.glob("*.json"))) == 1


def test_standard_output_may_be_full(tmp_path: Path) -> None:
    out = tmp_path / "runs"
    make_record().save(out / "a.json")
    command = [sys.executable, "-m", "tutti", "runs", str(out)]
    with open("/dev/full", "w") as full:
        result = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, env=with_tests({}))
    assert result.returncode == 1
    assert result.stderr.count("\n") == 1
    assert "No space left on device" in result.stderr


# --- in one process --------------------------------------------------------------------------------------------------


def break_saving(monkeypatch: pytest.MonkeyPatch, folder: Path, times: int = 1_000_000) -> None:
    """So many records that belong into the folder cannot be written."""
    save, left = Record.save, [times]

    def saving(record: Record, path: Path) -> None:
        if path.is_relative_to(folder) and left[0] > 0:
            left[0] -= 1
            raise OSError(28, "No space left on device")
        save(record, path)

    monkeypatch.setattr(Record, "save", saving)


def test_records_wait_in_memory_until_there_is_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    break_saving(monkeypatch, tmp_path, times=1)
    said: list[str] = []
    with Saving(said.append) as saving:
        assert saving.save(make_record("one"), tmp_path / "1.json") == "No space left on device"
        assert not saving.all_written
        assert not saving.save(make_record("two"), tmp_path / "2.json")
        assert saving.all_written
    assert (said, saving.problems) == ([], [])
    assert [Record.load(tmp_path / f"{n}.json").name for n in (1, 2)] == ["one", "two"]


def test_a_comparison_goes_on_and_its_records_go_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out, spare = tmp_path / "out", tmp_path / "spare"
    spare.mkdir()
    break_saving(monkeypatch, out)
    monkeypatch.setattr("tempfile.tempdir", str(spare))
    words = ["compare", "ring", "ddp", "--engine", "threads", "--workers", "2", "--samples", "64", "--steps", "2"]
    assert main([*words, "--out", str(out), "--quiet"]) == 1
    said = capsys.readouterr()
    assert "ring" in said.out
    assert "ddp" in said.out
    assert "records:" not in said.out
    (folder,) = spare.glob("tutti-unsaved-*")
    assert sorted(Record.load(path).name for path in folder.iterdir()) == ["ddp", "ring"]
    assert said.err.count("cannot write") == 2


def test_records_are_safe_when_a_run_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    break_saving(monkeypatch, tmp_path / "out")
    said: list[str] = []

    def run() -> None:
        with Saving(said.append) as saving:
            saving.save(make_record(), tmp_path / "out" / "1.json")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run()
    assert len(list(tmp_path.glob("tutti-unsaved-*/1.json"))) == 1
    assert len(said) == 1


def test_where_nothing_can_be_written_that_is_said(tmp_path: Path) -> None:
    def write(_: Path) -> None:
        raise OSError(28, "No space left on device")

    said = Refuge().write(tmp_path / "a.json", write)
    assert said == f"cannot write {tmp_path}/a.json: No space left on device; and no other folder takes it"
    assert not list(Path.cwd().glob("tutti-unsaved-*"))


def test_a_checkpoint_that_does_not_fit_ends_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from tutti import checkpoint

    def write(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "write_file", write)
    words = ["run", "ddp", "--engine", "threads", "--workers", "2", "--samples", "64", "--steps", "5"]
    assert main([*words, "--checkpoint-every", "2", "--out", str(tmp_path / "out"), "--quiet"]) == 1
    said = capsys.readouterr()
    assert "accuracy" in said.out
    assert said.err.count("No space left on device; the run went on without this checkpoint") == 1
    (record,) = (tmp_path / "out").glob("*.json")
    assert Record.load(record).steps == 5


def test_only_regular_files_of_a_bounded_size_are_read(tmp_path: Path) -> None:
    (tmp_path / "long").write_text(json.dumps("x" * 100))
    with pytest.raises(OSError, match="at most 50 are read"):
        read_text(tmp_path / "long", 50)
    for path in ("/dev/zero", "/"):
        with pytest.raises(OSError, match=r"no regular file|directory"):
            read_text(Path(path))
    assert read_text(Path("/proc/self/comm"))  # which says that it is empty
