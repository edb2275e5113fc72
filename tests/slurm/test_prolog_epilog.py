"""Power caps that Slurm's prolog applies for jobs without root, and that its epilog restores.

The site has installed what ``write_site_files`` writes, ``PrologFlags=Alloc,Contain``, and starts
slurmd as its systemd unit does: after ``restore``.
"""

import contextlib
import shutil
import sys
from pathlib import Path

import psutil
import pynvml
import pytest

from limiting import SET
from slurm.cluster import Cluster
from slurm.settings import Settings
from slurm.studies import Desk
from wattlaw_site.site_files import write_site_files

BEFORE_W = (287.5, 301.25)
CAP = "--comment=my own words wattlaw:power_w=250"
STATE = "/var/tmp/wattlaw-limits"  # noqa: S108 - a node's own
GRACE_S = 2
SITE = f"power_w: {{min: 150, max: 350}}\ngrace_s: {GRACE_S}\n"
#: Prints what a job without root can verify of its cap.
CHECK = """
import os, sys
from wattlaw.measure.devices.inventory import visible_gpu_ids
from wattlaw.measure.limits.requests import Limits
from wattlaw.measure.limits.prolog_limits import verify_prolog_limits
job_id, limits = os.environ["SLURM_JOB_ID"], Limits(float(sys.argv[1]))
for one in verify_prolog_limits(limits, visible_gpu_ids(), job_id, 0):
    print(os.uname().nodename, one.power_limit_before_w, one.power_limit_enforced_w, flush=True)
"""


class Site(Cluster):
    """A cluster whose administrator has installed prolog and epilog on all nodes."""

    def __init__(self) -> None:
        super().__init__(Settings(nodes=2))
        self.hooks = self.folder / "hooks"
        self.python = str(Path(sys.prefix) / "bin" / "python")
        for path in write_site_files(self.hooks, self.python):
            text = path.read_text().replace("=/var/lib/wattlaw/limits\n", f"={STATE}\n")
            path.write_text(text.replace("=/etc/wattlaw/site.yaml\n", f"={self.hooks}/site.yaml\n"))
        (self.hooks / "site.yaml").write_text(SITE)
        (self.hooks / "check.py").write_text(CHECK)
        self.settings.options.update(
            Prolog=self.hooks / "prolog.sh",
            Epilog=self.hooks / "epilog.sh",
            PrologFlags="Alloc,Contain",
        )

    def restore(self, name: str) -> None:
        """Do what systemd does before slurmd starts."""
        line = [self.python, "-I", "-m", "wattlaw_site", "restore", f"--state={STATE}"]
        self.run(*line, host=name, root=True)

    def boot(self, name: str) -> None:
        shutil.rmtree(self.place(name, "/run"))
        self._start_host(name)
        self._answer(name, "ready")
        self.restore(name)
        self.start_daemon(name)

    def check(self, watts: float) -> str:
        """Return the line of a script that tells what the job finds out."""
        return f"{self.python} {self.hooks}/check.py {watts:g}"

    def odd(self, name: str) -> None:
        for board, watts in zip(self.boards[name], BEFORE_W, strict=True):
            board.limit_mw = round(1000 * watts)

    def limits_w(self, name: str) -> tuple[float, ...]:
        return tuple(board.limit_mw / 1000 for board in self.boards[name])

    def left(self, name: str) -> list[str]:
        """Return what the hooks left on a node: states, reports and watchdogs."""
        found = [*self.place(name, "/var/tmp").glob("wattlaw-limits/*.json")]  # noqa: S108
        found += self.place(name, "/run").glob("wattlaw/*")
        return [*map(str, found), *map(str, self.watchdogs(name))]

    def watchdogs(self, name: str) -> list[psutil.Process]:
        found = []
        for process in self._init(name).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
                found += [process] if "watch" in process.cmdline() else []
        return found

    def wait_restored(self, name: str) -> None:
        what = f"{name} to be as before: {self.limits_w(name)}, {self.left(name)}"
        restored = lambda: self.limits_w(name) == BEFORE_W and not self.left(name)  # noqa: E731
        self.wait_for(restored, what, 30)

    def capped(self, script: str, *options: str) -> str:
        """Submit a job with a cap on one board of node1, and wait until it works."""
        job = self.sbatch(script, "--nodelist=node1", "--gres=gpu:1", CAP, *options)
        self.wait_state(job, "RUNNING")
        self.wait_for(lambda: self.output(job), "the job's first line")
        assert self.limits_w("node1") == (250, BEFORE_W[1])
        return job


@pytest.fixture(scope="module")
def started_site():
    with Site() as site:
        yield site


@pytest.fixture
def site(started_site):
    for name in started_site.names:
        started_site.odd(name)
    yield started_site
    started_site.repair()


def test_the_limit_is_restored_when_a_job_fails_or_is_cancelled_or_requeued(site):
    for line, state in (
        ((), "FAILED"),
        (("scancel",), "CANCELLED"),
        (("scontrol", "requeuehold"), "PENDING"),
    ):
        job = site.capped(f"echo began; {'sleep 100' if line else 'sleep 0.5; exit 3'}")
        if line:
            site.run(*line, job)
        site.wait_state(job, state)
        site.wait_restored("node1")
        assert site.node_state("node1") == "idle"


def test_all_nodes_of_a_job_are_capped_and_jobs_on_one_node_have_their_own_caps(site):
    wide = site.sbatch(f"srun {site.check(250)}; sleep 3", "--nodes=2", "--gres=gpu:1", CAP)
    site.wait_state(wide, "RUNNING")
    other = "--comment=wattlaw:power_w=200"
    narrow = site.sbatch(site.check(200), "--nodelist=node1", "--gres=gpu:1", other)
    site.wait_state(wide, "COMPLETED")
    site.wait_state(narrow, "COMPLETED")
    assert sorted(site.output(wide).splitlines()) == ["node1 287.5 250.0", "node2 287.5 250.0"]
    assert site.output(narrow) == "node1 301.25 200.0\n"
    for name in site.names:
        site.wait_restored(name)


def test_a_restart_of_slurmd_keeps_the_cap_of_a_running_job(site):
    job = site.capped("echo began; sleep 5; echo done")
    site.kill_daemon("node1")
    site.restore("node1")
    site.start_daemon("node1")
    assert site.limits_w("node1") == (250, BEFORE_W[1])
    site.wait_for(lambda: "done" in site.output(job), "the job to end by itself")
    site.wait_state(job, "COMPLETED")
    site.wait_restored("node1")


def test_a_node_whose_limit_cannot_be_restored_is_drained(site):
    job = site.capped("echo began; sleep 0.5")
    site.boards["node1"].fault(SET, code=pynvml.NVML_ERROR_UNKNOWN)
    site.wait_state(job, "COMPLETED")
    site.wait_for(lambda: site.node_state("node1") == "drained", "the node to be drained")
    site.boards["node1"].clear_faults()
    site.restore("node1")
    site.wait_restored("node1")
    site.resume("node1")
    site.wait_idle()


def test_the_limit_is_restored_after_a_reboot_of_the_node(site):
    job = site.capped("echo began; sleep 100", "--no-requeue")
    site.kill_node("node1")
    assert site.limits_w("node1") == (250, BEFORE_W[1])  # as if the driver had kept it
    site.declare_down("node1")
    site.wait_state(job, "NODE_FAIL")
    site.boot("node1")
    assert site.limits_w("node1") == BEFORE_W
    site.wait_idle()
    plain = site.sbatch("sleep 0.2", "--nodelist=node1", "--gres=gpu:1")
    site.wait_state(plain, "COMPLETED")
    site.wait_restored("node1")


def test_the_prolog_caps_the_runs_of_a_study_and_refused_ones_are_skipped(site):
    desk = Desk(site, site.fresh_folder())
    caps = {None: 1, 250: 2, 20: 1}
    sweep = {"global_batch": [128]}
    sweeps = [sweep | {"gpus": [gpus], "power_limit_w": [watts]} for watts, gpus in caps.items()]
    sleeps = [{"name": "sleeps", "command": ["sleep", "1"]}]
    desk.write({"limits": "prolog"}, workloads=sleeps, sweeps=sweeps)
    ended = desk.runs()
    assert ended.returncode == 0, ended.stdout + ended.stderr
    free, capped, refused = (
        next(one for one in desk.records() if one.spec.setting.power_limit_w == watts)
        for watts in caps
    )
    assert (free.status, free.limits) == ("done", ())
    assert capped.status == "done", capped.reason
    assert {one.host for one in capped.limits} == {"node1", "node2"}
    assert {one.limiter for one in capped.limits} == {"slurm"}
    for one in capped.limits:
        assert one.power_limit_enforced_w == 250
        assert one.power_limit_before_w in BEFORE_W
    assert refused.status == "skipped"
    assert "has refused: a power limit of 20 W is outside the site's" in refused.reason
    for name in site.names:
        site.wait_restored(name)
