"""Whatever dies, the supervisor included, the services go on or are started again, and all of them can be stopped."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time

from patchyard.local.control import end_stack
from patchyard.local.processes import SUPERVISOR, is_alive, tags
from patchyard.local.standby import STANDBY
from tests.integration.stack.conftest import Yard, eventually

TICKING = "import itertools, time\nfor n in itertools.count(): print('tick', n); time.sleep(0.05)\n"
SLEEPING = "import time\ntime.sleep(1000)\n"
STUBBORN = "import signal, time\nsignal.signal(15, signal.SIG_IGN)\nprint('deaf')\nwhile True: time.sleep(100)\n"
FORKING = "import os, time\nif os.fork() == 0: print('child', os.getpid())\ntime.sleep(1000)\n"
FAREWELL = """
import signal, sys, time
def end(*_):
    time.sleep(0.2)
    open('ended', 'a').write(__file__.rsplit('/')[-1] + ' ')
    sys.exit()
signal.signal(15, end)
print('up')
time.sleep(1000)
"""


def test_a_killed_service_is_started_again(yard: Yard) -> None:
    yard.follow(yard.service("a", SLEEPING))
    first = yard.pid("a")
    os.kill(first, signal.SIGKILL)
    eventually(lambda: yard.status("a").pid not in (None, first))
    assert yard.status("a").restarts == 1
    assert yard.status("a").last_exit == "SIGKILL"


def test_a_crash_loop_slows_down_and_is_never_given_up(yard: Yard) -> None:
    yard.follow(yard.service("a", "raise SystemExit(7)"))
    eventually(lambda: yard.status("a").failures >= 3)
    assert yard.status("a").last_exit == "status 7"
    before = yard.status("a").restarts
    time.sleep(1.5)
    assert yard.status("a").restarts <= before + 1
    eventually(lambda: yard.status("a").restarts > before)


def test_a_program_that_does_not_exist_is_said_and_tried_again(yard: Yard) -> None:
    service = yard.service("a", "")
    missing = type(service)(**{**service.__dict__, "argv": ("/no/such/program",)})
    yard.follow(missing)
    eventually(lambda: "No such file" in yard.status("a").last_exit)
    assert is_alive(yard.supervisor())


def test_a_killed_supervisor_is_replaced_and_its_services_never_notice(yard: Yard) -> None:
    yard.follow(yard.service("a", TICKING))
    pid, supervisor = yard.pid("a"), yard.supervisor()
    os.kill(supervisor, signal.SIGKILL)
    eventually(lambda: not is_alive(supervisor))
    assert yard.supervisor() != supervisor
    eventually(lambda: yard.supervised_by() == yard.supervisor())
    assert yard.pid("a") == pid
    ticks = yard.log("a").count("tick")
    eventually(lambda: yard.log("a").count("tick") > ticks + 3)
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: yard.status("a").pid not in (None, pid))


def test_supervisors_can_be_killed_one_after_the_other(yard: Yard) -> None:
    yard.follow(yard.service("a", TICKING))
    pid = yard.pid("a")
    seen = {yard.supervisor()}
    for _ in range(3):
        os.kill(yard.supervisor(), signal.SIGKILL)
        eventually(lambda: yard.supervised_by() not in seen and is_alive(yard.supervised_by()))
        seen.add(yard.supervised_by())
        eventually(lambda: STANDBY in {process.service for process in yard.living()})
    assert yard.pid("a") == pid


def test_services_without_any_supervisor_are_adopted_by_the_next_one(yard: Yard) -> None:
    service = yard.service("a", TICKING)
    yard.follow(service)
    pid = yard.pid("a")
    yard.kill_supervision()
    yard.follow(service)
    assert yard.pid("a") == pid
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: yard.status("a").pid not in (None, pid))


def test_what_was_started_in_the_last_moment_of_a_supervisor_is_adopted_too(yard: Yard) -> None:
    service = yard.service("a", SLEEPING)
    yard.follow(service)
    pid = yard.pid("a")
    yard.kill_supervision()
    yard.home.run.status.unlink()
    yard.follow(service)
    assert yard.pid("a") == pid
    assert [process.pid for process in yard.living() if process.service == "a"] == [pid]


def test_what_a_killed_service_leaves_behind_is_killed(yard: Yard) -> None:
    yard.follow(yard.service("a", FORKING))
    eventually(lambda: "child" in yard.log("a"))
    child = int(yard.log("a").split()[1])
    os.kill(yard.pid("a"), signal.SIGKILL)
    eventually(lambda: not is_alive(child))


def test_what_a_service_leaves_while_no_supervisor_lives_is_killed_by_the_next(yard: Yard) -> None:
    service = yard.service("a", FORKING)
    yard.follow(service)
    eventually(lambda: "child" in yard.log("a"))
    child = int(yard.log("a").split()[1])
    pid = yard.pid("a")
    yard.kill_supervision()
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: not is_alive(pid))
    assert is_alive(child)
    yard.follow(service)
    eventually(lambda: not is_alive(child))
    assert yard.pid("a") != pid


def test_workers_are_stopped_before_servers(yard: Yard) -> None:
    yard.follow(yard.service("server", FAREWELL, stage=0), yard.service("worker", FAREWELL, stage=2))
    eventually(lambda: "up" in yard.log("server") and "up" in yard.log("worker"))
    assert end_stack(yard.home) == []
    assert (yard.home.path / "ended").read_text() == "worker.py server.py "


def test_workers_are_stopped_before_servers_without_a_supervisor_too(yard: Yard) -> None:
    yard.follow(yard.service("server", FAREWELL, stage=0), yard.service("worker", FAREWELL, stage=2))
    eventually(lambda: "up" in yard.log("server") and "up" in yard.log("worker"))
    yard.kill_supervision()
    assert end_stack(yard.home) == []
    assert (yard.home.path / "ended").read_text() == "worker.py server.py "


def test_a_service_that_ignores_its_stop_signal_is_killed_in_time(yard: Yard) -> None:
    yard.follow(yard.service("a", STUBBORN, stop_seconds=0.5))
    eventually(lambda: "deaf" in yard.log("a"))
    started = time.monotonic()
    assert end_stack(yard.home) == []
    assert 0.4 < time.monotonic() - started < 20


def test_a_changed_service_is_restarted_and_an_unchanged_one_is_not(yard: Yard) -> None:
    yard.follow(yard.service("a", SLEEPING), yard.service("b", SLEEPING))
    a, b = yard.pid("a"), yard.pid("b")
    yard.follow(yard.service("a", SLEEPING, NEW="1"), yard.service("b", SLEEPING))
    assert yard.pid("a") != a
    assert not is_alive(a)
    assert yard.pid("b") == b


def test_a_service_that_is_no_longer_planned_is_stopped(yard: Yard) -> None:
    yard.follow(yard.service("a", SLEEPING), yard.service("b", SLEEPING))
    b = yard.pid("b")
    yard.follow(yard.service("a", SLEEPING))
    assert not is_alive(b)
    assert {process.service for process in yard.living()} == {SUPERVISOR, STANDBY, "a"}


def test_removing_the_folder_stops_everything(yard: Yard) -> None:
    yard.follow(yard.service("a", SLEEPING))
    assert yard.pid("a")
    shutil.rmtree(yard.home.path)
    eventually(lambda: yard.living() == [])


def test_everything_is_found_and_ended_without_supervisor_and_without_any_file(yard: Yard) -> None:
    yard.follow(yard.service("a", TICKING), yard.service("b", FORKING))
    eventually(lambda: "child" in yard.log("b") and "tick" in yard.log("a"))
    yard.kill_supervision()
    shutil.rmtree(yard.home.path)
    assert len(yard.living()) == 3
    assert end_stack(yard.home) == []


def test_a_second_supervisor_gives_way(yard: Yard) -> None:
    yard.follow(yard.service("a", SLEEPING))
    argv = [sys.executable, "-m", "patchyard.local.supervisor", str(yard.home.path)]
    env = tags(yard.home.path, SUPERVISOR) | {"PATH": os.environ["PATH"]}
    assert subprocess.run(argv, env=env, check=False, timeout=30).returncode == 3
    assert len([process for process in yard.living() if process.service == "a"]) == 1


def test_a_service_sees_its_own_variables_and_none_of_its_callers(yard: Yard) -> None:
    script = "import os, json\nprint(json.dumps(sorted(os.environ)))\nimport time\ntime.sleep(100)\n"
    os.environ["PATCHYARD_TEST_SECRET"] = "x"
    try:
        yard.follow(yard.service("a", script, OWN="1"))
    finally:
        del os.environ["PATCHYARD_TEST_SECRET"]
    eventually(lambda: "OWN" in yard.log("a"))
    assert set(json.loads(yard.log("a"))) - {"LC_CTYPE"} == {"OWN", "PATCHYARD_STACK", "PATCHYARD_SERVICE"}
