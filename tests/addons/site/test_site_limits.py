"""A site's Slurm prolog and epilog limit a job's boards for it, and always give back.

Slurm itself is in slurm/test_prolog_epilog.py; here the hooks are started as slurmd starts them.
"""

import json
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pynvml
import pytest

from conftest import wait_for
from limiting import SET, stays
from sites import ASKS, BEFORE_W, CLOCKS, GRACE_S, JOB, NODE, OTHER, SITE, THIRD, nodes, stepd
from wattlaw.common.errors import BadInput, NotAvailable
from wattlaw.measure.devices.sysfs import ROOT_VARIABLE
from wattlaw.measure.limits.prolog_limits import verify_prolog_limits
from wattlaw.measure.limits.requests import Limits
from wattlaw_site.__main__ import main
from wattlaw_site.site_file import SiteFile
from wattlaw_site.site_files import write_site_files


@pytest.fixture
def start(tmp_path, fake_gpus, monkeypatch):
    yield from nodes(tmp_path, fake_gpus, monkeypatch)


def test_the_board_of_a_job_is_limited_and_restored(start):
    node = start()
    assert node.process("prolog", comment=f"chapter 3 {ASKS}", gpus="1") == (0, "")
    assert node.limits_w == [287.5, 250]
    (limit,) = node.report(JOB)["limits"]
    assert limit["device"] == node.devices[1]
    assert (limit["power_limit_w"], limit["power_limit_enforced_w"]) == (250, 250)
    assert limit["power_limit_before_w"] == 301.25
    for path, mode in (
        (node.state, 0o700), (node.reports, 0o755), (node.reports / f"{JOB}.{NODE}.json", 0o644),
    ):  # fmt: skip
        assert stat.S_IMODE(path.stat().st_mode) == mode
    (watchdog,) = node.watchdogs
    assert str(node.boards.path) in Path(f"/proc/{watchdog.pid}/maps").read_text()
    code, said = node.process("epilog")
    assert (code, f"restored the limits of {node.devices[1]}, of job {JOB}" in said) == (0, True)
    assert node.limits_w == BEFORE_W
    wait_for(node.is_clean, "the watchdog to end", 10)
    assert node.hook("epilog") == (0, "")  # once more does no harm


def test_the_hooks_and_their_watchdog_ignore_another_root_of_the_kernels_files(
    start, amd_machine, monkeypatch
):
    machine = amd_machine("MI210")
    node = start()
    node.more_environment = {ROOT_VARIABLE: str(machine.sys)}
    assert node.process("prolog", comment=ASKS, gpus="1") == (0, "")
    assert node.limits_w == [287.5, 250]
    (watchdog,) = node.watchdogs
    assert ROOT_VARIABLE not in watchdog.environ()
    assert node.process("epilog")[0] == 0
    monkeypatch.setenv(ROOT_VARIABLE, str(machine.sys))
    assert main(node.line("show")) == 0
    assert ROOT_VARIABLE not in os.environ
    assert {gpu.limit_uw for gpu in machine.gpus} == {217_000_000}


def test_two_jobs_have_boards_of_their_own(start):
    node = start()
    with stepd(JOB), stepd(OTHER):
        node.prolog(JOB, gpus="0")
        node.prolog(OTHER, "wattlaw:power_w=200", gpus="1")
        assert node.limits_w == [250, 200]
        assert node.hook("epilog", JOB)[0] == 0
        assert node.limits_w == [287.5, 200]
        node.prolog(THIRD, "wattlaw:power_w=160", gpus="0")
        assert node.limits_w == [160, 200]
        assert node.hook("epilog", OTHER, gpus="1")[0] == node.hook("epilog", THIRD)[0] == 0
    assert node.limits_w == BEFORE_W


@pytest.mark.parametrize("again", ["wattlaw:power_w=200", "wattlaw:power_w=20", None])
def test_a_repeated_prolog_keeps_the_saved_previous_limit(start, again):
    node = start(1)
    with stepd(JOB):
        node.prolog()
        node.prolog(comment=again)
        assert node.limits_w == [200 if again == "wattlaw:power_w=200" else 287.5]
    wait_for(lambda: len(node.watchdogs) == len(node.states), "the first watchdog to end", 10)
    node.hook("epilog")
    assert node.limits_w == [287.5]
    wait_for(node.is_clean, "the watchdogs to end", 10)


def test_the_clock_is_locked_and_let_go(start):
    node = start(1)
    node.allow(CLOCKS)
    node.prolog(comment="wattlaw:clock_mhz=1200")
    board = node.boards[0]
    assert (board.locked_min_mhz, board.locked_max_mhz, board.limit_mw) == (1200, 1200, 287_500)
    node.hook("epilog")
    assert (board.locked_min_mhz, board.locked_max_mhz) == (0, 0)
    assert node.boards.calls(SET) == 0


def test_a_power_profile_is_set_and_let_go(start):
    node = start(1, profiles=0b10110, requested_profiles=0b100)
    node.prolog(comment="wattlaw:power_profile=max-q")
    assert "allows no power profile max-q" in node.report(JOB)["refused"]
    node.allow(SITE + "power_profiles: [max-q]\n")
    node.prolog(comment="wattlaw:power_w=250,power_profile=max-q")
    board, report = node.boards[0], node.report(JOB)
    assert (board.requested_profiles, board.limit_mw) == (0b10, 250_000)
    assert (report["power_profile"], report["power_limit_w"]) == ("max-q", 250.0)
    limits = Limits(250.0, power_profile="max-q")
    assert verify_prolog_limits(limits, node.devices, str(JOB), 0)[0].power_profile == "max-q"
    with pytest.raises(NotAvailable, match="another request"):
        verify_prolog_limits(Limits(250.0), node.devices, str(JOB), 0)
    node.hook("epilog")
    assert (board.requested_profiles, board.limit_mw) == (0b100, 287_500)


def test_the_comment_is_queried_if_slurm_does_not_set_it(start, monkeypatch):
    node = start(1)
    node.squeue(f"{OTHER} another task of the array\n{JOB} {ASKS}")
    told = node.environment(JOB, None)
    del told["SLURM_JOB_RESTART_COUNT"]
    monkeypatch.setattr(node, "environment", lambda *_: told)
    node.prolog()
    assert node.limits_w == [250]


def test_limits_of_a_job_without_an_epilog_are_restored_before_the_next_job(start):
    node = start(1)
    for comment, limit_w in ((None, 287.5), ("wattlaw:power_w=200", 200)):
        node.prolog(JOB)
        for watchdog in node.watchdogs:
            watchdog.kill()
        assert node.limits_w == [250]
        assert "restored the limits" in node.prolog(OTHER, comment)
        assert node.limits_w == [limit_w]
        node.hook("epilog", OTHER)
        assert node.limits_w == [287.5]


def test_limits_of_a_killed_prolog_are_restored(start):
    node = start(1)
    node.boards.fault(SET, hang=True)
    process = node.start("prolog", JOB, ASKS)
    wait_for(lambda: node.boards.calls(SET) == 1, "the driver to be asked")
    (saved,) = node.state.glob("*.json")
    assert json.loads(saved.read_text())["power_limit_w"] == 287.5
    node.kill_slurmd()
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    node.boards[0].limit_mw = 250_000  # the driver has done it all the same
    node.boards.clear_faults()
    wait_for(node.is_clean, "the watchdog to give back")
    assert node.limits_w == [287.5]


def test_without_slurmd_the_watchdog_restores_after_the_job(start):
    node = start(1)
    with stepd(JOB) as step:
        assert node.process("prolog", comment=ASKS)[0] == 0
        (watchdog,) = node.watchdogs
        assert os.getsid(watchdog.pid) != os.getsid(0)
        watchdog.send_signal(signal.SIGTERM)
        node.kill_slurmd()
        assert stays(lambda: node.limits_w == [250], 1.5 * GRACE_S)
        step.kill()
        step.wait()
        wait_for(node.is_clean, "the watchdog to give back")
    assert node.limits_w == [287.5]


@pytest.mark.parametrize(
    ("told", "has_slurmd", "is_kept"),
    [
        ("{JOB} RUNNING", True, True),
        ("{JOB} RUNNING", False, True),  # slurmd may come back, and start the next step
        ("{JOB} COMPLETING", True, True),  # the epilog will come
        ("{JOB} COMPLETING", False, False),
        ("{JOB} PENDING", True, False),  # requeued
        ("{OTHER} RUNNING", False, False),
    ],
)
def test_slurm_is_queried_about_jobs_without_work_on_the_node(start, told, has_slurmd, is_kept):
    node = start(1)
    node.squeue(told.format(JOB=JOB, OTHER=OTHER))
    with stepd(JOB, "extern"):
        node.prolog()
        if not has_slurmd:
            node.kill_slurmd()
        if is_kept:
            assert stays(lambda: node.limits_w == [250], 2.5 * GRACE_S)
            node.hook("epilog")
        wait_for(node.is_clean, "the watchdog to end", 20)
    assert node.limits_w == [287.5]


def test_a_limit_stays_while_the_state_of_its_job_is_unknown(start):
    node = start(2)  # slurmd lives, the job has no process now, and squeue fails
    node.prolog(JOB)
    node.prolog(OTHER, None, gpus="1")
    assert node.limits_w == [250, 301.25]
    code, said = node.hook("restore")
    assert (code, "'restore --all'" in said) == (1, True)
    assert node.limits_w == [250, 301.25]
    node.prolog(OTHER, None, gpus="0")  # the board is another job's, so that one has left
    assert node.limits_w == BEFORE_W


def test_an_epilog_that_cannot_restore_drains_the_node(start):
    node = start(1)
    with stepd(JOB):  # so that the watchdog waits
        node.prolog()
        node.boards.fault(SET, code=pynvml.NVML_ERROR_UNKNOWN)
        code, said = node.hook("epilog")
        assert (code, "not restored" in said) == (1, True)
        assert node.states == node.devices
    assert "not restored" in node.prolog(OTHER, None)  # the next job runs, and it is told
    node.boards.clear_faults()
    assert node.hook("epilog")[0] == 0
    assert node.limits_w == [287.5]


def test_restore_handles_ended_jobs_and_all_also_running_ones(start):
    node = start()
    with stepd(JOB), stepd(OTHER) as gone:
        node.prolog(JOB, gpus="0")
        node.prolog(OTHER, gpus="1")
        for watchdog in node.watchdogs:
            watchdog.kill()
        said = node.hook("show")[1]
        assert f"limited for job {JOB} of ada" in said
        assert "before: 287.5 W" in said
        gone.kill()
        gone.wait()
        node.kill_slurmd()
        assert node.hook("restore")[0] == 0
        assert node.limits_w == [250, 301.25]
        assert node.report(OTHER) is None
        assert main([*node.line("restore"), "--all"]) == 0
    assert node.limits_w == BEFORE_W
    assert node.is_clean()


@pytest.fixture
def scripts(start, tmp_path):
    """Give a node whose administrator has changed the folders of the scripts."""
    node = start(1)
    folder = tmp_path / "scripts"
    for path in write_site_files(folder, str(Path(sys.prefix) / "bin" / "python")):
        text = path.read_text()
        for usual, own in (
            ("/etc/wattlaw/site.yaml", node.config),
            ("/var/lib/wattlaw/limits", node.state),
            ("/run/wattlaw", node.reports),
        ):
            text = text.replace(f"={usual}\n", f"={own}\n")
        path.write_text(text)
    return node, folder


def test_the_scripts_limit_and_restore(scripts):
    node, folder = scripts
    assert (folder / "site.yaml").stat().st_mode & 0o777 == 0o644
    for name, limit_w in (("prolog.sh", 250), ("epilog.sh", 287.5)):
        told = node.environment(JOB, ASKS)
        del told["PATH"]
        done = subprocess.run([folder / name], env=told, check=True, capture_output=True)
        assert node.limits_w == [limit_w], done
    wait_for(node.is_clean, "the watchdog to end", 10)


def test_jobs_without_a_request_do_not_start_python(scripts):
    node, folder = scripts
    for name in ("prolog.sh", "epilog.sh"):
        path = folder / name
        path.write_text(path.read_text().replace(str(Path(sys.prefix) / "bin"), "/nowhere"))
        for told in (node.environment(JOB, "my words"), node.environment(JOB, ASKS, gpus="")):
            done = subprocess.run([path], env=told, check=True, capture_output=True)
            assert done.stderr == b""
    told = node.environment(JOB, ASKS)
    done = subprocess.run([folder / "prolog.sh"], env=told, check=True, capture_output=True)
    assert b"not found" in done.stderr  # and a Python that is gone stops no job


def test_the_example_of_the_sites_file_can_be_used(scripts):
    node, folder = scripts
    text = (folder / "site.yaml").read_text()
    node.allow(text)
    node.prolog()
    assert node.limits_w == [250]
    assert node.hook("epilog")[0] == 0
    for line in ("clock_mhz: {", "prior_clocks: d", "users: [", "accounts: ["):
        assert f"# {line}" in text
        text = text.replace(f"# {line}", line)
    node.allow(text)
    assert SiteFile.read(node.config).accounts == ("energy",)


def test_scripts_are_written_for_a_plain_python_into_a_free_place(tmp_path):
    for python in ("python3", "/opt/my python", "/opt/$(id)/python", ""):
        with pytest.raises(BadInput, match="not an absolute path"):
            write_site_files(tmp_path, python)
    (tmp_path / "epilog.sh").touch()
    with pytest.raises(BadInput, match="exists"):
        write_site_files(tmp_path, "/usr/bin/python3")
    assert [path.name for path in tmp_path.iterdir()] == ["epilog.sh"]
