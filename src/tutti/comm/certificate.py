"""A certificate for one run, made by the openssl command; every worker shows it and accepts no other."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from tutti.comm.handshake import Tls
from tutti.errors import UserError


def make_certificate(folder: Path) -> Tls:
    """A self-signed certificate and its key in this folder, valid for a month."""
    if shutil.which("openssl") is None:
        raise UserError("--tls makes its certificate with the openssl command, which is not here; give --tls-cert")
    folder.mkdir(parents=True, exist_ok=True)
    tls = Tls(folder / "run.crt", folder / "run.key")
    tls.key.touch(mode=0o600)
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 30 -subj /CN=tutti-run"
    made = subprocess.run(
        [*command.split(), "-keyout", str(tls.key), "-out", str(tls.cert)], capture_output=True, text=True
    )
    if made.returncode != 0:
        raise UserError(f"openssl could not make a certificate: {made.stderr.strip().splitlines()[-1]}")
    return tls
