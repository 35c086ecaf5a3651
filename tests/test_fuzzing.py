"""A bounded part of what benchmarks/fuzz.py does: no malformed input ends in anything but a sentence."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from fuzzing import KINDS

COUNTS = {
    "specs": 400,
    "command lines": 60,
    "records": 200,
    "reports": 10,
    "data files": 150,
    "files of runs": 200,
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", KINDS)
def test_malformed_input_gets_a_sentence(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for seed in range(COUNTS[kind]):
        try:
            KINDS[kind](Random(seed), tmp_path)
        except Exception as error:
            error.add_note(f"{kind}, seed {seed}")
            raise
