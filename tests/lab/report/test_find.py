"""Records are found by what they are; what is none is passed over in a folder and named where it was asked for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from sample_records import make_record

from tutti.errors import UserError
from tutti.lab.report.find import find_records, load_records, passed_over


def save_old(path: Path) -> None:
    path.write_text(json.dumps({"format": 0, "measurements": [], "name": "old"}))


def test_a_folder_is_its_records_in_order(tmp_path: Path) -> None:
    for name in ("02-ring", "01-ddp", "10-star"):
        make_record(name).save(tmp_path / f"{name}.json")
    (tmp_path / "results.json").write_text('[{"name": "ring"}]')
    (tmp_path / "settings.json").write_text('{"name": "ring"}')
    (tmp_path / "broken.json").write_text("{")
    (tmp_path / "deep.json").mkdir()
    assert [record.name for record in load_records([tmp_path])[0]] == ["01-ddp", "02-ring", "10-star"]


def test_files_and_folders_stand_in_the_order_given(tmp_path: Path) -> None:
    make_record("single").save(tmp_path / "a" / "x.json")
    make_record("ring").save(tmp_path / "b" / "x.json")
    places = [tmp_path / "b" / "x.json", tmp_path / "a"]
    assert [record.name for record in load_records(places)[0]] == ["ring", "single"]


def test_a_folder_without_records_is_a_mistake(tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text("[]")
    make_record().save(tmp_path / "below" / "x.json")
    with pytest.raises(UserError, match=f"no record of a run in {tmp_path} itself; there are some in {tmp_path}/below"):
        load_records([tmp_path])


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "is no record of a run"),
        ("[1]", "is a record of another version"),
        ('{"format": 0}', "is a record of another version"),
        ('{"format": 1, "name": "ring"}', "is no whole record of a run"),
        ('{"format": 1, "colour": "red"}', "is no whole record of a run"),
    ],
)
def test_a_file_that_is_named_must_be_a_record(text: str, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(UserError, match=sentence):
        load_records([path])


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="No such file"):
        load_records([tmp_path / "x.json"])


def test_a_record_of_another_version_is_not_left_out_in_silence(tmp_path: Path) -> None:
    make_record().save(tmp_path / "new.json")
    save_old(tmp_path / "old.json")
    records, problems = load_records([tmp_path])
    assert records == [make_record()]
    assert len(problems) == 1
    assert "old.json is a record of another version" in problems[0]
    new, old = find_records(tmp_path)
    assert new.record == make_record()
    assert old.record is None
    assert "another version" in old.problem


def test_also_below(tmp_path: Path) -> None:
    make_record("ring").save(tmp_path / "a" / "b" / "x.json")
    assert not find_records(tmp_path)
    (found,) = find_records(tmp_path, "**/*.json")
    assert found.path == tmp_path / "a" / "b" / "x.json"


def test_what_is_passed_over_in_a_folder_can_be_named(tmp_path: Path) -> None:
    make_record().save(tmp_path / "a.json")
    (tmp_path / "b.json").write_text("{")
    (tmp_path / "c.txt").write_text("")
    assert passed_over([tmp_path]) == [tmp_path / "b.json"]
    assert passed_over([tmp_path / "a.json"]) == []
