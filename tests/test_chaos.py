"""Workers are killed and stopped at random moments: no hang, nothing left, the right one named."""

from __future__ import annotations

import random
import signal

import pytest
from launch_targets import harm_oneself
from launching import ignore, options
from test_worker_processes import own_workers

from tutti.errors import RunFailed
from tutti.launch import launch

FAULTS = (signal.SIGKILL, signal.SIGTERM, signal.SIGABRT, signal.SIGSEGV, signal.SIGSTOP)


@pytest.mark.parametrize("wire", ["shared", "tcp", "torch"])
def test_faults_at_random_moments(wire: str) -> None:
    draw = random.Random(wire)
    for fault in FAULTS:
        culprit, moment = draw.randrange(3), draw.uniform(0.0, 0.3)
        with pytest.raises(RunFailed, match=rf"^worker {culprit} "):
            launch(harm_oneself, (int(fault), culprit, moment), options(3, wire=wire, timeout=2.0), ignore)
    assert own_workers() == []
