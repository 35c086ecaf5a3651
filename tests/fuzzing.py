"""Malformed input, drawn from a seed: specs, command lines, records, data files and the small files of runs.

Every function takes a generator and a folder, hands one mutated input to the program and returns. A UserError (or, of a
command, its exit code) is an answer; any other exception is a defect.
"""

from __future__ import annotations

import gzip
import io
import json
import math
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import asdict
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

from sample_data import cifar_batch, idx, random_bytes
from sample_records import make_older, make_race, make_record

from tutti.algorithms.base import Algorithm
from tutti.checkpoint_folder import File, Manifest
from tutti.cli import main
from tutti.data.formats import read_cifar, read_labelled_idx
from tutti.errors import RunFailed, UserError
from tutti.lab.export import flatten
from tutti.lab.record import Record
from tutti.lab.report.page import make_page
from tutti.lab.started import Started
from tutti.lab.table import finding, make_table
from tutti.lab.tuned import read_tuned
from tutti.networks.base import Network
from tutti.partitions.base import Partition
from tutti.presets import PRESETS, ROUTES
from tutti.spec import names, parse
from tutti.topologies.base import Topology

SPECS = [
    *PRESETS,
    *PRESETS.values(),
    "gradient-average(all-reduce(star, krum(1)), bucket=1MiB)",
    "model-average(gossip(edge-list(0-1-2+1-3)), order=combine-first)",
    "switch(ddp, d-psgd)",
]
_BASES: tuple[type, ...] = (Algorithm, Topology, Network, Partition)
_PIECES = (
    "(",
    ")",
    ",",
    "=",
    ":",
    "-",
    "1e999",
    "-1",
    "0",
    "9" * 400,
    "nan",
    "\x1b[31m",
    "\0",
    "é",
    "ddp",
    "/dev/zero",
)
_VALUES: tuple[Any, ...] = (
    *(None, True, -1, 0, 1, 10**30, -1e300, 1e300, float("nan"), float("inf"), "", "x", "\x1b[2J", "9" * 400),
    *([], {}, [[]], [None], {"a": 1}, ["x"], [1e308, 1e308]),
)
_COMMANDS = [
    ["run", "ddp", "--workers", "2", "--steps", "3"],
    ["compare", "ring", "ddp", "--epochs", "1", "--lr", "0.1"],
    ["run", "ddp", "--partition", "dirichlet(0.1)", "--batch", "8", "--model", "lenet-5", "--deadline", "10s"],
    ["explain", "ring", "--workers", "4"],
    ["topology", "ring", "--workers", "8"],
    ["catalogue", "topologies"],
    ["runs", "runs", "--csv", "-"],
    ["report", "runs"],
    ["bench", "--route", "ring", "--sizes", "4KiB:64KiB:x4", "--workers", "2"],
    ["study"],
    ["data", "list"],
]


def try_spec(random: Random, _: Path) -> None:
    base = random.choice(_BASES)
    text = _mutate_text(random, random.choice([*SPECS, *ROUTES, *(names(base.axis))]))  # type: ignore[attr-defined]
    try:
        made = parse(text, base)
        assert parse(str(made), base) == made
        made.check(random.choice((1, 2, 4, 8)))
    except UserError as error:
        _check_sentence(str(error))


def try_command(random: Random, folder: Path) -> None:
    """No worker is started: what comes before that is what may be wrong."""
    _make_runs(random, folder / "runs")
    words = list(random.choice(_COMMANDS))
    for _ in range(random.randint(1, 3)):
        at = random.randrange(1, len(words) + 1)
        if random.random() < 0.3:
            words.insert(at, random.choice(["--out", "--json", "--loss", "--seed", "--tls", "x" * 300, "-", "--quiet"]))
        elif at < len(words):
            words[at] = _mutate_text(random, words[at]).replace("\0", "")  # which no command line can have
    said, errors = io.StringIO(), io.StringIO()
    with (
        patch("tutti.lab.run.launch", side_effect=RunFailed("no worker is started here")),
        patch("tutti.launch.launch", side_effect=RunFailed("no worker is started here")),
        redirect_stdout(said),
        redirect_stderr(errors),
        suppress(SystemExit),
    ):
        main(words)
    _check_sentence(errors.getvalue())


def _make_runs(random: Random, folder: Path) -> None:
    """Three whole records, and one that may be damaged."""
    if not folder.is_dir():
        for record in make_race()[:3]:
            record.save(folder / f"{record.name}.json")
    (folder / "fuzzed.json").write_bytes(_mutate_json(random, _record_text(random)))


def try_record(random: Random, folder: Path) -> None:
    """What can be loaded can be listed, shown and compared."""
    path = folder / "01-fuzzed.json"
    path.write_bytes(_mutate_json(random, _record_text(random)))
    try:
        record = Record.load(path)
    except UserError as error:
        _check_sentence(str(error))
        return
    flatten(record)
    make_table([record, make_record()])
    finding([record, make_record()])
    if record.measurements and record.evaluations:
        record.row()


def try_report(random: Random, folder: Path) -> None:
    path = folder / "01-fuzzed.json"
    path.write_bytes(_mutate_json(random, _record_text(random), mild=True))
    try:
        record = Record.load(path)
    except UserError:
        return
    make_page([record, make_record()])


def try_data(random: Random, folder: Path) -> None:
    suffix = random.choice(("", ".gz"))
    count = random.randint(1, 6)
    images, labels = idx(random_bytes(count, 28, 28)), idx(random_bytes(count, below=10))
    batch = cifar_batch(random_bytes(count, 3, 32, 32), random_bytes(count, below=10))
    paths = []
    for name, content in (("images", images), ("labels", labels), ("batch", batch)):
        paths.append(folder / f"{name}{suffix}")
        paths[-1].unlink(missing_ok=True)  # it may be mapped
        paths[-1].write_bytes(_pack(random, content, suffix))
    for read in (
        lambda: read_labelled_idx(paths[0], paths[1], (28, 28), 10, "tutti data get mnist"),
        lambda: read_cifar(paths[2], 10, "tutti data get cifar10"),
    ):
        try:
            read()
        except UserError as error:
            _check_sentence(str(error))


def try_run_file(random: Random, folder: Path) -> None:
    """The small files: of a run that goes on, of a checkpoint, of tuned values."""
    started = {"name": "ddp", "spec": "ddp", "plan": {"task": "digits"}, "options": {}, "tutti": "0", "format": 1}
    files = [{"name": "worker-0.pt", "bytes": 3, "sha256": "ab"}]
    manifest: dict[str, Any] = {"run": "a", "number": 1, "spec": "ddp", "workers": 1, "steps": 3, "files": files}
    manifest |= {"tutti": "0", "torch": "2", "extras": {}, "format": 1}
    (folder / "checkpoints").mkdir(exist_ok=True)
    tuned = {"key": {}, "plan": {"lr": 0.1}, "accuracy": 0.9, "when": "2026", "samples": None, "seeds": 1}
    readers: list[tuple[Path, Any, Callable[[], Any]]] = [
        (folder / "checkpoints" / "run.json", started, lambda: Started.read(folder)),
        (folder / "manifest.json", manifest, lambda: _check_manifest(Manifest.read(folder))),
        (folder / "tuned.json", {"format": 1, "entries": [tuned]}, lambda: read_tuned(folder / "tuned.json")),
    ]
    path, content, read = random.choice(readers)
    path.write_bytes(_mutate_json(random, json.dumps(content)))
    try:
        read()
    except UserError as error:
        _check_sentence(str(error))


KINDS: dict[str, Callable[[Random, Path], None]] = {
    "specs": try_spec,
    "command lines": try_command,
    "records": try_record,
    "reports": try_report,
    "data files": try_data,
    "files of runs": try_run_file,
}


# --- mutations -------------------------------------------------------------------------------------------------------


def _mutate_text(random: Random, text: str) -> str:
    for _ in range(random.randint(1, 4)):
        at = random.randrange(len(text) + 1)
        kind = random.randrange(5)
        if kind == 0:
            text = text[:at] + random.choice(_PIECES) + text[at:]
        elif kind == 1:
            text = text[:at] + text[at + random.randint(1, 4) :]
        elif kind == 2:
            text = text[:at] + chr(random.randrange(1, 0x3000)) + text[at + 1 :]
        elif kind == 3:
            text = text[:at] + random.choice(SPECS) + text[at:]
        elif random.random() < 0.1:
            text = text[:at] + text[at : at + 9] * random.choice((10, 1000)) + text[at:]
    return text


def _record_text(random: Random) -> str:
    hosts = {"asked": "hosts(1Gbit)", "measured": [{"host": 0, "asked": 1e9, "out": 9e8, "in": 9e8, "latency": 1e-4}]}
    record = random.choice([make_record(network=hosts, workers=2), make_older(make_record(workers=2)), *make_race()])
    return json.dumps({"format": 1, **asdict(record)})


def _mutate_json(random: Random, text: str, mild: bool = False) -> bytes:
    if not mild and random.random() < 0.2:
        return _mutate_bytes(random, text.encode())
    data = json.loads(text)
    for _ in range(random.randint(1, 3)):
        data = _mutate_value(random, data, mild)
    return json.dumps(data).encode()


def _mutate_value(random: Random, value: Any, mild: bool, depth: int = 0) -> Any:
    """One place of it is changed: removed, replaced, doubled, or deeply nested."""
    if depth > random.randint(0, 5) or not isinstance(value, dict | list) or not value:
        if mild and isinstance(value, float | int) and value is not True:
            changed = random.choice((0, 1, value * 2, value / 3, 1e-9, 1e9, -value, float("nan")))
            return int(changed) if isinstance(value, int) and math.isfinite(changed) else changed
        if mild:
            return "\x1b[31m<b>" * 9 if isinstance(value, str) else value
        return random.choice(_VALUES)
    key = random.choice(list(value) if isinstance(value, dict) else range(len(value)))
    if random.random() < 0.1 * (not mild):
        return {k: v for k, v in value.items() if k != key} if isinstance(value, dict) else value[: int(str(key))]
    changed = _mutate_value(random, value[key], mild, depth + 1)
    if isinstance(value, dict):
        return {**value, key: changed}
    return [*value[:key], changed, *value[key + 1 :]]


def _mutate_bytes(random: Random, content: bytes) -> bytes:
    changed = bytearray(content)
    for _ in range(random.randint(0, 4)):
        if not changed:
            break
        at = random.randrange(len(changed))
        kind = random.randrange(3)
        if kind == 0:
            changed[at] ^= 1 << random.randrange(8)
        elif kind == 1:
            del changed[at:]
        else:
            changed[at:at] = random.choice((b"[" * 100_000, b"\xff" * 4, b"\0" * 5000, b"9" * 5000))
    return bytes(changed)


def _pack(random: Random, content: bytes, suffix: str) -> bytes:
    """Damaged before it is packed, or behind; or a small file that unpacks to a large one."""
    if suffix and random.random() < 0.02:
        return gzip.compress(content + bytes(50_000_000), 1)
    header = bytearray(content[:16])
    header[random.randrange(len(header))] = random.randrange(256)
    content = random.choice((bytes(header) + content[16:], _mutate_bytes(random, content)))
    return _mutate_bytes(random, gzip.compress(content, 1)) if suffix else content


def _check_manifest(manifest: Manifest) -> None:
    assert all(isinstance(file, File) for file in manifest.files)


def _check_sentence(text: str) -> None:
    """Nothing in it commands a terminal, and it has an end."""
    wrong = [each for each in text if not each.isprintable() and each not in "\n\t"]
    assert not wrong, f"unprintable: {wrong[:3]!r}"
    assert len(text) < 20_000, f"{len(text)} characters"
