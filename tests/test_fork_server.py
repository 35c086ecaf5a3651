"""The server that workers are forked from: its signals, its sessions, its end. Each in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

BEGIN = """
import os, select, signal, socket, subprocess, sys, time
from pathlib import Path
from tutti import fork_server

def wait_for(session, count):
    found = []
    while len(found) < count and select.select([session], [], [], 20)[0]:
        found += session.receive()
    return found

def is_over(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True

def wait_until(holds):
    limit = time.monotonic() + 15
    while not holds() and time.monotonic() < limit:
        time.sleep(0.02)
    return holds()

def fork(session):
    ours, theirs = socket.socketpair()
    session.fork(theirs)
    return ours
"""
CHILD = """
import os, signal, time
def echo(end):
    word = end.recv(100)
    if word == b"sleep":
        time.sleep(60)
    if word == b"stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    if word == b"files":
        files = [f"/proc/self/fd/{n}" for n in os.listdir("/proc/self/fd") if int(n) > 2]
        word = b" ".join(os.fsencode(os.readlink(file)) for file in files if os.path.lexists(file))
    end.sendall(word)
    os._exit(7)
"""


def run(program: str, folder: Path, timeout: float = 60.0) -> str:
    (folder / "child.py").write_text(CHILD)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), *sys.path])}
    done = subprocess.run(
        [sys.executable, "-c", BEGIN + program], capture_output=True, text=True, env=environment, timeout=timeout
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout.strip()


def test_what_it_forks_gets_its_end_and_its_end_is_reported(tmp_path: Path) -> None:
    program = """
session = fork_server.open_session("child:echo", [])
ends = [fork(session) for _ in range(2)]
for end in ends:
    end.sendall(b"hello")
print([end.recv(100) for end in ends])
reports = wait_for(session, 4)
pids = [report["pid"] for report in reports if "pid" in report]
print(len(set(pids)), sorted(report["code"] for report in reports if report.get("ended") in pids))
"""
    assert run(program, tmp_path) == "[b'hello', b'hello']\n2 [7, 7]"


def test_a_child_has_no_file_of_the_servers(tmp_path: Path) -> None:
    program = """
first, session = (fork_server.open_session("child:echo", []) for _ in range(2))
fork(first)
wait_for(first, 1)
end = fork(session)
end.sendall(b"files")
print(end.recv(10000).decode())
"""
    (its_own,) = [file for file in run(program, tmp_path).split() if not file.startswith("/")]
    assert its_own.startswith("socket:")


def test_a_session_that_is_closed_kills_its_own_workers_only(tmp_path: Path) -> None:
    program = """
sessions = [fork_server.open_session("child:echo", []) for _ in range(2)]
ends = [fork(session) for session in sessions]
for end in ends:
    end.sendall(b"stop")
pids = [wait_for(session, 1)[0]["pid"] for session in sessions]
sessions[0].close()
print(wait_until(lambda: is_over(pids[0])), is_over(pids[1]))
"""
    assert run(program, tmp_path) == "True False"


def test_an_interrupt_while_it_imports_is_not_heard_by_it(tmp_path: Path) -> None:
    (tmp_path / "this_takes_long.py").write_text("import time\ntime.sleep(1.5)\n")
    program = """
session = fork_server.open_session("child:echo", ["this_takes_long"])
time.sleep(0.7)
os.kill(fork_server._server.process.pid, signal.SIGINT)
end = fork(session)
end.sendall(b"hello")
print(end.recv(100))
"""
    assert run(program, tmp_path) == "b'hello'"


def test_an_interrupt_while_it_starts_is_delivered_afterwards(tmp_path: Path) -> None:
    program = """
start = subprocess.Popen
def interrupted(*args, **options):
    os.kill(os.getpid(), signal.SIGINT)
    return start(*args, **options)
subprocess.Popen = interrupted
try:
    fork_server.open_session("child:echo", [])
    print("nobody heard it")
except KeyboardInterrupt:
    print("heard")
"""
    assert run(program, tmp_path) == "heard"


def test_this_process_hears_interrupts_as_before(tmp_path: Path) -> None:
    program = """
before = signal.getsignal(signal.SIGINT), signal.pthread_sigmask(signal.SIG_BLOCK, [])
fork_server.open_session("child:echo", [])
print((signal.getsignal(signal.SIGINT), signal.pthread_sigmask(signal.SIG_BLOCK, [])) == before)
"""
    assert run(program, tmp_path) == "True"


def test_stopped_it_is_gone_with_its_workers_and_another_one_comes(tmp_path: Path) -> None:
    program = """
session = fork_server.open_session("child:echo", [])
fork(session).sendall(b"stop")
pid, server = wait_for(session, 1)[0]["pid"], fork_server._server.process.pid
fork_server.stop()
print(is_over(server), wait_until(lambda: is_over(pid)))
session = fork_server.open_session("child:echo", [])
end = fork(session)
print(fork_server._server.process.pid != server, "pid" in wait_for(session, 1)[0])
"""
    assert run(program, tmp_path) == "True True\nTrue True"


def test_a_killed_server_takes_its_stopped_workers_along(tmp_path: Path) -> None:
    program = """
session = fork_server.open_session("child:echo", [])
fork(session).sendall(b"stop")
pid = wait_for(session, 1)[0]["pid"]
fork_server._server.process.kill()
print(wait_until(lambda: is_over(pid)))
while not session.closed:
    select.select([session], [], [], 5)
    session.receive()
print(session.how_it_ended())
"""
    assert run(program, tmp_path) == "True\nthe process that workers are forked from was killed by signal 9"


def test_it_ends_with_a_launcher_that_is_killed(tmp_path: Path) -> None:
    launcher = tmp_path / "launcher.py"
    launcher.write_text(
        BEGIN
        + """
session = fork_server.open_session("child:echo", [])
fork(session).sendall(b"stop")
print(fork_server._server.process.pid, wait_for(session, 1)[0]["pid"], flush=True)
time.sleep(60)
"""
    )
    program = f"""
launcher = subprocess.Popen([sys.executable, {str(launcher)!r}], stdout=subprocess.PIPE)
pids = [int(pid) for pid in launcher.stdout.readline().split()]
os.kill(pids[0], signal.SIGSTOP)
launcher.kill()
launcher.wait()
launcher.stdout.close()
print(wait_until(lambda: all(map(is_over, pids))))
"""
    assert run(program, tmp_path) == "True"
