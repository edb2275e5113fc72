"""The windows of a run with several attempts: each epoch once, from its last attempt."""

import json
from pathlib import Path
from typing import NamedTuple

import pyarrow.parquet as pq
import pytest

from made_runs import made_record, made_spec
from wattlaw.common.errors import BadInput
from wattlaw.running.finish import failure_reason, finish, merged_windows, missing_windows
from wattlaw.running.training import failures
from wattlaw.store.live import open_windows, write_window
from wattlaw.store.record import RunRecord
from wattlaw.store.run_folder import RunFolder
from wattlaw.store.schema import WINDOWS
from wattlaw.study.model import Measure, WorkloadSpec, run_id
from wattlaw.study.setting import Setting

DIGITS = WorkloadSpec(name="digits-cnn")
COMMAND = WorkloadSpec(name="own", command=("python", "train.py"))


class Part(NamedTuple):
    """A window: of training from one step up to another, or of evaluation."""

    epoch: int | None
    begin: int
    end: int
    phase: str = "train"
    hosts: str = "a"


def evaluated(epoch: int, hosts: str = "a") -> Part:
    return Part(epoch, 0, 0, "evaluate", hosts)


W = 10  # steps of a whole epoch


def written(
    folder: Path,
    attempts: list[list[Part]],
    *,
    nodes: int = 1,
    epochs: int = 2,
    workload: WorkloadSpec = DIGITS,
) -> tuple[RunRecord, RunFolder]:
    measure = Measure(epochs=epochs, warmup_epochs=0, evaluate=True)
    setting = Setting(gpus=nodes, local_batch=8)
    spec = made_spec(setting, workload=workload, measure=measure, nodes=nodes)
    record = made_record(run_id(spec), spec, attempts=len(attempts))
    run = RunFolder(folder / record.run_id)
    for number, parts in enumerate(attempts, 1):
        run.live(number).mkdir(parents=True)
        for host in sorted({host for part in parts for host in part.hosts}):
            with open_windows(run.live(number), host) as windows:
                for part in (part for part in parts if host in part.hosts):
                    is_training = part.phase == "train"
                    write_window(
                        windows,
                        host,
                        epoch=part.epoch,
                        phase=part.phase,
                        warmup=False,
                        start_ns=number,  # tells the attempt
                        duration_s=1.0,
                        from_step=part.begin,
                        steps=part.end - part.begin if is_training else None,
                    )
    return record, run


@pytest.mark.parametrize("epochs", [[0, 1], [None, None]])
def test_a_command_that_is_tried_again_has_the_windows_of_the_last_time_only(epochs, tmp_path):
    attempts = [[Part(epoch, 0, W) for epoch in given] for given in ([0, 1, None], epochs)]
    record, run = written(tmp_path, attempts, workload=COMMAND)
    assert finish(record, run).status == "done"
    table = pq.read_table(run.epochs_path)
    assert (table["epoch"].to_pylist(), table["start_ns"].to_pylist()) == (epochs, [2, 2])


FIRST = [Part(0, 0, W), evaluated(0)]


@pytest.mark.parametrize(
    ("attempts", "expected", "numbers"),
    [
        (  # cut in the second epoch
            [[*FIRST, Part(1, 0, 4)], [Part(1, 4, W), evaluated(1)]],
            [(1, 0, 0, 10), (1, 1, 0, 4), (2, 1, 4, 6)],
            [1, 2],
        ),
        (  # cut twice in one epoch, with an attempt that made nothing between
            [[Part(0, 0, 4)], [], [Part(0, 4, 7)], [Part(0, 7, W), evaluated(0), Part(1, 0, W)]],
            [(1, 0, 0, 4), (3, 0, 4, 3), (4, 0, 7, 3), (4, 1, 0, 10)],
            [1, 3, 4],
        ),
        (  # the second was killed after it had made more than its checkpoint
            [[Part(0, 0, 4)], [Part(0, 4, W), evaluated(0), Part(1, 0, W)], [Part(0, 4, W)]],
            [(1, 0, 0, 4), (3, 0, 4, 6)],
            [1, 3],
        ),
        (  # a cut whose checkpoint was not written
            [[*FIRST, Part(1, 0, 4)], [Part(1, 0, W), evaluated(1)]],
            [(1, 0, 0, 10), (2, 1, 0, 10)],
            [1, 2],
        ),
        (  # an evaluation was pending: the training before it stays
            [[Part(0, 0, 4)], [Part(0, 4, W)], [evaluated(0), Part(1, 0, W), evaluated(1)]],
            [(1, 0, 0, 4), (2, 0, 4, 6), (3, 1, 0, 10)],
            [1, 2, 3],
        ),
        (  # a checkpoint that was removed: from the beginning
            [[*FIRST, Part(1, 0, 4)], [Part(0, 0, W), evaluated(0), Part(1, 0, W), evaluated(1)]],
            [(2, 0, 0, 10), (2, 1, 0, 10)],
            [2],
        ),
        (  # ended after its last window
            [[*FIRST, Part(1, 0, W), evaluated(1)], []],
            [(1, 0, 0, 10), (1, 1, 0, 10)],
            [1],
        ),
    ],
)
def test_parts_of_epochs_are_each_from_the_last_attempt_that_made_them(
    attempts, expected, numbers, tmp_path
):
    table, kept = merged_windows(*written(tmp_path, attempts))
    training = [row for row in table.to_pylist() if row["phase"] == "train"]
    names = ("start_ns", "epoch", "from_step", "steps")
    assert [tuple(row[name] for name in names) for row in training] == expected
    assert table.schema == WINDOWS
    assert [number for number in kept if attempts[number - 1]] == numbers


WHOLE = [Part(0, 0, W), evaluated(0), Part(1, 0, W), evaluated(1)]


def on(hosts: str, parts: list[Part]) -> list[Part]:
    return [part._replace(hosts=hosts) for part in parts]


@pytest.mark.parametrize(
    ("parts", "nodes", "missing"),
    [
        (WHOLE, 1, None),
        ([Part(0, 0, 4), Part(0, 4, W), *WHOLE[1:]], 1, None),
        ([Part(0, 0, 4), Part(0, 5, W), *WHOLE[1:]], 1, "1 of 4 windows are missing"),
        ([Part(0, 0, 5), Part(0, 4, W), *WHOLE[1:]], 1, "1 of 4 windows are missing"),
        ([], 1, "4 of 4 windows are missing"),
        (on("ab", WHOLE), 2, None),
        # other hosts after the first part
        ([*on("ab", [Part(0, 0, 4)]), *on("cd", [Part(0, 4, W), *WHOLE[1:]])], 2, None),
        (
            [*on("ab", [Part(0, 0, 4)]), Part(0, 4, W), *on("ab", WHOLE[1:])],
            2,
            "1 of 4 windows are missing on some of 2 hosts",
        ),
    ],
)
def test_an_epoch_is_complete_if_its_parts_cover_all_steps_on_every_host(
    parts, nodes, missing, tmp_path
):
    record, run = written(tmp_path, [parts], nodes=nodes)
    assert missing_windows(record, run.windows(1)) == missing


def test_an_attempt_that_stopped_for_a_warning_is_not_the_runs_end(tmp_path):
    record, run = written(tmp_path, [[Part(0, 0, 4), evaluated(0)]], epochs=1)
    told = {"epoch": 0, "step": 4, "reason": "warned"}
    (run.live(1) / "stopped.json").write_text(json.dumps(told))
    record = finish(record, run)
    assert record.status == "failed"
    assert record.reason.startswith("stopped after step 4 of epoch 0: warned")


def test_the_reason_of_a_failure_is_that_of_the_host_that_was_not_its_consequence(tmp_path):
    _, run = written(tmp_path, [[]])
    live = run.live(1)
    failures.write_failure(live, "a", "terminated", "the node agent was ended by SIGTERM")
    assert failure_reason(run, 1, 1) == "the node agent was ended by SIGTERM"
    failures.write_error(live, 2, BadInput("no such file"))
    assert failure_reason(run, 1, 1) == "rank 2: no such file"
    (live / "error.2.json").unlink()
    failures.write_error(
        live, 1, RuntimeError("[.../gloo/transport/tcp/pair.cc:547] Connection closed by peer")
    )
    failures.write_failure(live, "b", "exited", "rank 2 ended with exit code 3")
    assert failure_reason(run, 1, 1) == "rank 2 ended with exit code 3"
    failures.write_failure(live, "c", "killed", "rank 3 ended by signal 9 (SIGKILL)")
    assert failure_reason(run, 1, 1) == "rank 3 ended by signal 9 (SIGKILL)"
    failures.write_failure(live, "a", "killed", "another")  # what it said first stays
    assert json.loads((live / "failure.a.json").read_text())["kind"] == "terminated"
