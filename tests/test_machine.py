from __future__ import annotations

import os
import subprocess
import sys

from tutti.machine import count_cores


def test_at_least_one_core() -> None:
    assert 1 <= count_cores() <= (os.cpu_count() or 1)


def test_only_those_this_process_may_run_on() -> None:
    program = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}); import tutti.machine as m\n"
    command = [sys.executable, "-c", f"{program}print(m.count_cores())"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.stdout.strip() == "1", done.stderr
