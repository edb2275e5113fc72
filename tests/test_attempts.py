"""The windows of a run that took several attempts: each epoch once, from who made it last."""

from pathlib import Path

import pytest

from wattlaw.launch.finish import finish
from wattlaw.store.record import RunRecord
from wattlaw.store.run_folder import RunFolder
from wattlaw.study.identity import run_id
from wattlaw.study.model import Measure, RunSpec, Setting, Train, WorkloadSpec
from wattlaw.telemetry.windows import open_windows, write_window

DIGITS = WorkloadSpec(name="digits-cnn")
COMMAND = WorkloadSpec(name="own", command=("python", "train.py"))
EPOCHS = 4


def finished(
    folder: Path, workload: WorkloadSpec, every: int | None, *attempts: list[int | None]
) -> tuple[RunRecord, list[tuple[int | None, float]]]:
    """Finish a run whose attempts wrote training windows of some epochs.

    Returns its record, and epoch and loss of each window, the loss being the attempt's number.
    """
    spec = RunSpec(
        workload=workload,
        setting=Setting(gpus=1, global_batch=8, local_batch=8),
        repeat=0,
        measure=Measure(epochs=EPOCHS, warmup_epochs=0, evaluate=False),
        train=Train(checkpoint_every=every),
        launch_kind="local",
    )
    run = RunFolder(folder / run_id(spec))
    for number, epochs in enumerate(attempts, 1):
        run.live(number).mkdir(parents=True)
        with open_windows(run.live(number), "here") as windows:
            for epoch in epochs:
                told = {"phase": "train", "warmup": False, "start_ns": 1, "duration_s": 1.0}
                write_window(windows, "here", epoch=epoch, loss=float(number), **told)
    record = RunRecord(
        run_id=run.run_id, study="x", spec=spec, seed=0, order_seed=0, attempts=len(attempts)
    )
    record = finish(record, run)
    if record.status != "done":
        return record, []
    import pyarrow.parquet as pq

    table = pq.read_table(run.epochs_path)
    return record, [*zip(table["epoch"].to_pylist(), table["loss"].to_pylist(), strict=True)]


@pytest.mark.parametrize(
    ("attempts", "expected"),
    [
        ([[0, 1, 2, 3]], [(0, 1), (1, 1), (2, 1), (3, 1)]),
        ([[0, 1], [2, 3]], [(0, 1), (1, 1), (2, 2), (3, 2)]),
        ([[0, 1, 2], [1, 2, 3]], [(0, 1), (1, 2), (2, 2), (3, 2)]),  # 1 and 2 were not kept
        ([[0], [], [1], [], [2, 3]], [(0, 1), (1, 3), (2, 5), (3, 5)]),
        ([[0, 1, 2, 3], [0, 1, 2, 3]], [(0, 2), (1, 2), (2, 2), (3, 2)]),  # no checkpoint was left
        ([[0, 1, 2, 3], []], [(0, 1), (1, 1), (2, 1), (3, 1)]),  # killed after the last epoch
    ],
)
def test_a_run_with_checkpoints_has_each_epoch_from_the_last_attempt_that_made_it(
    attempts, expected, tmp_path
):
    record, found = finished(tmp_path, DIGITS, 1, *attempts)
    assert (record.status, found) == ("done", expected)


def test_a_run_with_checkpoints_that_lacks_an_epoch_has_failed(tmp_path):
    record, _ = finished(tmp_path, DIGITS, 2, [0, 1], [3])
    assert (record.status, record.reason) == ("failed", "1 of 4 windows are missing")


def test_without_checkpoints_an_attempt_stands_for_itself(tmp_path):
    record, _ = finished(tmp_path, DIGITS, None, [0, 1], [2, 3])
    assert (record.status, record.reason) == ("failed", "2 of 4 windows are missing")


@pytest.mark.parametrize("epochs", [[0, 1], [None, None]])
def test_a_command_that_is_tried_again_has_the_windows_of_the_last_time_only(epochs, tmp_path):
    record, found = finished(tmp_path, COMMAND, 1, [0, 1, None], epochs)
    assert (record.status, found) == ("done", [(epoch, 2) for epoch in epochs])
