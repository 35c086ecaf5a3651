"""Runs of the scripts in examples/: as a launcher starts them, several at once, with what they print."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"


class Started:
    """The processes of one run; worker 0 prints."""

    def __init__(self, commands: list[list[str]], environments: list[dict[str, str]], folder: Path) -> None:
        self._processes = [
            subprocess.Popen(
                command,
                cwd=folder,
                env={**_environment(), **environment},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for command, environment in zip(commands, environments, strict=True)
        ]

    def wait(self, timeout: float = 100.0) -> str:
        """What was printed, when all processes have ended well."""
        try:
            texts = [process.communicate(timeout=timeout)[0] for process in self._processes]
        finally:
            self.kill()
        for process, text in zip(self._processes, texts, strict=True):
            assert process.returncode == 0, text
        return "".join(texts)

    def kill_after(self, beginning: str) -> None:
        """When a line begins with this, kill all processes, as a machine that fails."""
        assert self._processes[0].stdout is not None
        seen = []
        for line in self._processes[0].stdout:
            seen.append(line)
            if line.startswith(beginning):
                return self.kill()
        raise AssertionError("".join(seen))

    def kill(self) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.kill()
                process.wait()
            if process.stdout is not None:
                process.stdout.close()  # or a later test is told of a file that nobody has closed


def start(script: str, folder: Path, *args: str, workers: int = 2) -> Started:
    """Every worker with torchrun's variables, without torchrun itself, which imports torch once more."""
    port = str(_find_port())
    shared = {"WORLD_SIZE": str(workers), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    command = [sys.executable, str(EXAMPLES / script), *args]
    ranks = [{**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(workers)]
    return Started([command] * workers, ranks, folder)


def start_plainly(folder: Path, *command: str) -> Started:
    """One command that starts its workers itself: torchrun, or a script with mp.spawn."""
    return Started([[sys.executable, *command]], [{}], folder)


def losses(text: str) -> list[list[float]]:
    """The numbers of every line that has a loss in it."""
    lines = [line for line in text.splitlines() if " loss " in line]
    return [[float(number) for number in re.findall(r"-?\d+\.?\d*(?:e-?\d+)?", line)] for line in lines]


def _environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    return {
        **kept,
        "PYTHONPATH": str(ROOT / "src"),
        "OMP_NUM_THREADS": "1",
        "PYTHONUNBUFFERED": "1",
        "TUTTI_SECRET": "a test",
    }


def _find_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port
