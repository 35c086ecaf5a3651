"""Programs that a test puts on the PATH in the place of real ones."""

from __future__ import annotations

from pathlib import Path

import pytest


def put_program(folder: Path, monkeypatch: pytest.MonkeyPatch, **scripts: str) -> None:
    """Shell scripts under these names (npm, apt_get, ...) and beside them nothing but the system's own tools."""
    folder.mkdir(exist_ok=True)
    for name, script in scripts.items():
        path = folder / name.replace("_", "-")
        path.write_text(f"#!/bin/sh\nPATH=/usr/bin:/bin\n{script}\n")
        path.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))
