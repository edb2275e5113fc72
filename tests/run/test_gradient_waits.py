"""What the hook times of DDP and FSDP, within this process; waits are known exactly."""

import threading
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import distributed

from wattlaw.running.instrumentation.hook._wattlaw import step_hook as hook
from wattlaw.running.instrumentation.hook._wattlaw.model_facts import see_ddp
from wattlaw.running.instrumentation.records import StepsFolder

WAIT_S = 0.05


@pytest.fixture
def recorder(tmp_path, monkeypatch):
    monkeypatch.setenv("WATTLAW_STEPS", str(tmp_path / "steps"))
    (tmp_path / "steps").mkdir()
    store = dist.FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield hook._Recorder()
    dist.destroy_process_group()


def late(_: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """A communication hook of the script's own, whose gradients come late."""
    future = torch.futures.Future()
    threading.Timer(WAIT_S, lambda: future.set_result(2 * bucket.buffer())).start()
    return future


def test_a_failure_leaves_the_waits_missing_and_the_training_as_it_is(recorder, monkeypatch):
    mark = recorder.waits._mark

    def fail_later():
        if recorder.waits.passes == 7:
            raise RuntimeError("another version of torch")
        return mark()

    monkeypatch.setattr(recorder.waits, "_mark", fail_later)

    class Ddp(distributed.DistributedDataParallel):
        """A class of its own, which the hook may change."""

    see_ddp(SimpleNamespace(DistributedDataParallel=Ddp), recorder)
    plain = nn.Linear(2, 1, bias=False)
    nn.init.ones_(plain.weight)
    ddp = Ddp(plain)
    ddp.register_comm_hook(None, late)
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    for _ in range(6):  # steps of two backward passes, of which the second communicates
        with ddp.no_sync():
            ddp(torch.ones(1, 2)).sum().backward()
        time.sleep(WAIT_S)  # is no wait for gradients
        ddp(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        recorder.step(optimizer)
        optimizer.zero_grad()
    recorder.end()
    (process,) = StepsFolder(Path(recorder.folder)).read()
    assert process.gradient_wait_s[0] > 0.9 * WAIT_S  # its own hook is timed, and later unchanged
    assert [problem.split(":")[0] for problem in process.problems] == ["gradient waits"]
    assert process.steps == 6
    assert np.isnan(process.gradient_wait_s[4:]).all()
    assert torch.allclose(plain.weight, torch.full((1, 2), 1 - 6 * 0.1 * 2 * 2))
