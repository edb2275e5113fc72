"""A batch that does not fit fails its run with what to do; the sweep goes on."""

import resource
import subprocess
import sys
from pathlib import Path

import yaml

from wattlaw.store.store import Store

#: Enough for torch and digits, not for what the first convolution makes of the batch below (address
#: space, bytes).
ROOM = 6 * 2**30
IMAGES = {
    "blocks": [1, 1, 1, 1],
    "image_size": 224,
    "classes": 10,
    "train_samples": 1024,
    "evaluation_samples": 4,
}


def limited() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (ROOM, ROOM))


def test_a_batch_that_does_not_fit_fails_only_its_run(tmp_path: Path):
    study = {
        "name": "memory",
        "workloads": [{"name": "resnet50", "options": IMAGES}, {"name": "digits-cnn"}],
        "sweeps": [
            {"gpus": [1], "local_batch": [1024], "workloads": ["resnet50"]},
            {"gpus": [1], "local_batch": [512], "workloads": ["digits-cnn"]},
        ],
        "order": "as_written",
        "measure": {"epochs": 1, "warmup_epochs": 0},
        "launch": {"threads_per_worker": 1},
    }
    path = tmp_path / "study.yaml"
    path.write_text(yaml.safe_dump(study))
    line = [sys.executable, "-m", "wattlaw", "run", str(path), "--store", str(tmp_path / "store")]
    ended = subprocess.run(line, preexec_fn=limited, capture_output=True, timeout=170, check=False)
    assert ended.returncode == 1, ended.stderr
    records = {record.spec.workload.name: record for record in Store(tmp_path / "store").records()}
    assert records["digits-cnn"].status == "done", records["digits-cnn"].reason
    failed = records["resnet50"]
    assert failed.status == "failed"
    assert failed.reason is not None
    assert "out of memory: the local batch does not fit" in failed.reason
    assert "train.gradient_accumulation" in failed.reason
