"""What a benchmark leaves behind: its rows with every sample, and under which conditions they were taken."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tutti.lab.bench.floor import describe_floor
from tutti.lab.bench.rows import Row, make_json
from tutti.lab.export import write_whole
from tutti.lab.record import describe_command, describe_machine, describe_versions
from tutti.networks.base import Network


@dataclass
class Bench:
    """All that was measured: the rows, the samples of each in seconds, and the networks as they were found."""

    rows: list[Row] = field(default_factory=list)
    times: list[list[float]] = field(default_factory=list)
    networks: list[dict[str, Any]] = field(default_factory=list)  # one per number of workers

    def save(self, path: Path) -> None:
        """One file, whole or not at all."""
        record = {
            "command": describe_command(),
            "ended": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine": describe_machine(),
            "versions": describe_versions(),
            "networks": self.networks,
            "rows": [{**row, "times": times} for row, times in zip(make_json(self.rows), self.times, strict=True)],
        }
        write_whole(json.dumps(record, indent=1) + "\n", path)


def describe_conditions(rows: list[Row], network: Network) -> str:
    """Where it was measured, and what the floor means there; two lines."""
    machine, versions = describe_machine(), describe_versions()
    wires = ", ".join(dict.fromkeys(row.wire for row in rows))
    parts = [
        str(network),
        f"wire {wires}",
        f"{machine['cores']} cores",
        machine["processor"],
        f"torch {versions['torch']}",
        f"tutti {versions['tutti']}",
        f"{datetime.now(UTC):%Y-%m-%d}",
    ]
    return f"{' · '.join(str(part) for part in parts)}\n{describe_floor(network)}"
