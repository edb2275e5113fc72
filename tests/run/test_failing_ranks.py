"""One rank fails while the others wait for it: the run ends at once, for that rank's reason."""

import subprocess
import time

import psutil
import pyarrow.parquet as pq
import pytest

from agents import PLUGIN, agent, record_of, several
from conftest import environment, records, wattlaw
from fake_nvml import FakeGpus
from limiting import Place
from ranks import spec_of
from wattlaw.running.slurm.submission import interrupted
from wattlaw.running.training import failures
from wattlaw.running.training.environment import HOST, WARNS
from wattlaw.store.record import RunRecord
from wattlaw.store.run_folder import RunFolder
from wattlaw.store.store import Store
from wattlaw.study.model import run_id
from wattlaw.study.out_of_memory import memory_that_ran_out

#: Long for a busy machine; a rank that waits for a failed one waits for 600 s or more.
SOON_S = 90.0
_LOST = "disconnected"


@pytest.fixture
def failing(tmp_path, write_study):
    """Return a function that runs a study until soon after a fault, and returns the record."""
    store = tmp_path / "store"

    def run(fault: str, power_limit_w: float | None = None) -> RunRecord:
        study = write_study(
            workloads=[{"name": "digits-failing", "options": {"width": 4}}],
            sweeps=[{"gpus": [2], "global_batch": [128], "power_limit_w": [power_limit_w]}],
            measure={"epochs": 2, "warmup_epochs": 0, "sample_hz": 20, "assume_cpu_w": 15},
            train={"checkpoint_every": 2, "loader_workers": int("loading" in fault)},
        )
        failed_at = tmp_path / f"failed-at.{fault[0]}"
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PYTHONPATH", f"{PLUGIN}:{environment()['PYTHONPATH']}")
            patch.setenv("TEST_FAULT", fault)
            patch.setenv("TEST_FAILED_AT", str(failed_at.with_suffix("")))
            ended = wattlaw("run", study, "--store", store)
        assert time.time() - float(failed_at.read_text()) < SOON_S
        (record,) = records(store).values()
        assert ended.returncode == (record.state == "failed"), ended.stderr
        assert record.status == "failed"
        folder = str(Store(store).folder(record.run_id).path.resolve())
        assert not [each for each in psutil.process_iter(["cmdline"])
                    if folder in (each.info["cmdline"] or ())]  # fmt: skip
        return record

    return run


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("1 starting raises", "rank 1: ValueError: sample 7 is broken"),
        ("1 loading is_killed", "rank 1: RuntimeError: DataLoader worker"),
        ("0 training is_killed", "rank 0 ended by signal 9 (SIGKILL)"),
    ],
)
def test_a_failing_rank_ends_the_run_at_once_for_its_reason(failing, fault, reason):
    assert str(failing(fault).reason).startswith(reason)


def test_a_run_out_of_memory_ends_all_ranks_is_not_repeated_and_keeps_its_measurements(
    failing, tmp_path, monkeypatch
):
    place = Place(tmp_path, FakeGpus.create(tmp_path / "boards", 2), monkeypatch)
    before_w = place.limits_w
    record = failing("1 training lacks_memory", 150)
    assert "rank 1: out of memory: the local batch does not fit" in str(record.reason)
    assert (record.state, record.out_of_memory) == ("out of memory", "device")
    assert record.facts.parameters and record.finished_at > record.started_at
    folder = Store(tmp_path / "store").folder(record.run_id)
    rows = pq.read_table(folder.epochs_path).to_pylist()
    assert [(row["epoch"], row["phase"]) for row in rows] == [(0, "train"), (0, "evaluate")]
    samples = pq.read_table(folder.telemetry_path)
    assert max(samples["t_ns"].to_pylist()) > rows[-1]["start_ns"]
    assert set(samples["power_limit_w"].drop_null().to_pylist()) == {150.0}
    assert failing("1 training lacks_memory", 150) == record
    assert place.limits_w == before_w
    assert place.is_clean()


@pytest.fixture
def two_nodes(tmp_path):
    """Return a function that runs two agents of one rank each until both have ended."""
    agents: list[subprocess.Popen[bytes]] = []

    def run(fault: str) -> tuple[RunRecord, RunFolder]:
        spec = spec_of("digits-failing", {"width": 4}, gpus=2, global_batch=128)
        spec = spec.model_copy(update={"nodes": 2})
        folder = RunFolder(tmp_path / run_id(spec))
        record = record_of(spec, folder, 1)
        told = {"TEST_FAULT": fault, "TEST_FAILED_AT": str(tmp_path / "failed-at"), WARNS: "1"}
        for number, options in enumerate(several(2)):
            agents.append(agent(folder, 1, options, **told, **{HOST: f"n{number}"}))
        for each in agents:
            each.wait(120)
        assert time.time() - float((tmp_path / f"failed-at.{fault[0]}").read_text()) < SOON_S
        return record, folder

    yield run
    for each in agents:
        each.kill()
        each.wait()


def test_a_failure_ends_the_ranks_of_another_node_that_do_not_notice_it(two_nodes, monkeypatch):
    monkeypatch.setenv("TEST_WAITS", "1")
    record, folder = two_nodes("0 training lacks_memory")
    live = folder.live(1)
    kinds = {failure.kind for failure in failures.read_failures(live)}
    assert kinds == {"error", "terminated"}
    assert {path.name for path in live.glob("sampler.*.json")} == {
        "sampler.n0.json",
        "sampler.n1.json",
    }
    reason = str(failures.cause(live))
    assert reason.startswith("rank 0: out of memory")
    after = interrupted(record, folder, "lost contact with n1")
    assert (after.status, after.reason, after.interruptions) == ("failed", reason, ())


def test_a_rank_that_loses_another_node_has_not_failed_by_itself(two_nodes):
    record, folder = two_nodes("1 training is_lost")
    live = folder.live(1)
    assert [failure.kind for failure in failures.read_failures(live)] == ["disconnected"]
    assert failures.cause(live) is None
    after = interrupted(record, folder, "lost contact with n1")
    assert (after.status, len(after.interruptions)) == ("planned", 1)


@pytest.mark.parametrize(
    ("text", "kind", "memory"),
    [
        ("RuntimeError: [../gloo/transport/tcp/pair.cc:547] Connection closed", _LOST, None),
        ("RuntimeError: NCCL communicator was aborted on rank 1", _LOST, None),
        ("DistStoreError: Timed out after 1801 seconds", _LOST, None),
        ("ConnectionResetError: [Errno 104] Connection reset by peer", _LOST, None),
        ("OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", "error", "device"),
        ("RuntimeError: HIP error: out of memory", "error", "device"),
        ("RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED", "error", "device"),
        ("OOM", "error", "device"),
        ("rank 0 ended by signal 9 (SIGKILL), " + failures.KILLED_FOR_MEMORY, "error", "host"),
        ("job 4: ran out of memory on its nodes; request more; the log is empty", "error", "host"),
        ("exit code 2: python: can't open file '/home/oom/out_of_memory.py'", "error", None),
        ("ValueError: a socket of 8 pins", "error", None),
    ],
)
def test_errors_that_the_end_of_another_rank_or_a_lack_of_memory_causes(text, kind, memory):
    assert failures.kind_of_error(text) == kind
    assert memory_that_ran_out(text) == memory


def test_a_rank_that_is_interrupted_has_no_error_of_its_own(tmp_path):
    failures.write_error(tmp_path, 1, KeyboardInterrupt())
    (found,) = failures.read_failures(tmp_path, "error.*.json")
    assert (found.reason, found.kind) == ("KeyboardInterrupt", "exited")
