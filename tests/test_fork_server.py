"""The server's signals: deaf to Ctrl-C, gone when stopped, and made anew when needed. Each in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys

BEGIN = "import multiprocessing, os, signal, time; from tutti import fork_server\n"
SLOW = "multiprocessing.set_forkserver_preload(['this_takes_long'])\n"


def run(program: str, folder: str) -> str:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([folder, *sys.path])}
    done = subprocess.run(
        [sys.executable, "-c", BEGIN + program], capture_output=True, text=True, env=environment, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout.strip()


def test_an_interrupt_while_it_imports_is_not_heard(tmp_path: object) -> None:
    with open(f"{tmp_path}/this_takes_long.py", "w") as file:
        file.write("import time\ntime.sleep(1.5)\n")
    program = SLOW + "fork_server.start(); time.sleep(0.7); os.kill(fork_server._number(), signal.SIGINT)\n"
    program += "time.sleep(0.3); print(os.path.exists(f'/proc/{fork_server._number()}')); fork_server.stop()"
    assert run(program, str(tmp_path)) == "True"


def test_this_process_hears_interrupts_as_before() -> None:
    program = "before = signal.getsignal(signal.SIGINT); fork_server.start()\n"
    program += "print(signal.getsignal(signal.SIGINT) is before); fork_server.stop()"
    assert run(program, "") == "True"


def test_stopped_it_is_gone_with_a_list_of_what_it_made() -> None:
    program = (
        "context = multiprocessing.get_context('forkserver'); fork_server.start()\n"
        "child = context.Process(target=time.sleep, args=(60,)); child.start()\n"
        "made = fork_server.stop(); print(made == {str(child.pid)}); os.kill(child.pid, signal.SIGKILL)"
    )
    assert run(program, "") == "True"


def test_without_a_server_there_is_nothing() -> None:
    assert run("print(fork_server.made_by_it(), fork_server.stop())", "") == "set() set()"
