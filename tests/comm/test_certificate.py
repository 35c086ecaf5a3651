"""The certificate that a run makes for itself."""

from __future__ import annotations

import ssl
import stat
from pathlib import Path

import pytest

from tutti.comm.certificate import make_certificate
from tutti.errors import UserError


def test_key_is_for_its_owner_only(tmp_path: Path) -> None:
    tls = make_certificate(tmp_path / "new" / "folder")
    assert stat.S_IMODE(tls.key.stat().st_mode) == 0o600


def test_every_run_has_its_own(tmp_path: Path) -> None:
    one, other = make_certificate(tmp_path / "one"), make_certificate(tmp_path / "other")
    assert one.cert.read_text() != other.cert.read_text()
    for tls in (one, other):
        assert isinstance(tls.context(server=True), ssl.SSLContext)


def test_without_openssl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="openssl command, which is not here; give --tls-cert"):
        make_certificate(tmp_path)


def test_what_openssl_said_is_passed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "openssl"
    broken.write_text("#!/bin/sh\necho out of luck >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with pytest.raises(UserError, match="could not make a certificate: out of luck"):
        make_certificate(tmp_path / "run")
