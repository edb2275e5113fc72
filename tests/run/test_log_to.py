"""``track(log_to=...)``: results in the run that is open in W&B, MLflow or TensorBoard."""

import json
import sys
from collections import defaultdict
from pathlib import Path

import pytest

import wattlaw
from conftest import environment, python
from fake_nvml import FakeGpus
from wattlaw.common.errors import NotAvailable
from wattlaw.store.store import Store
from wattlaw_formats import tensorboard

OPEN = {
    "wandb": "import wandb; wandb.init(project='p', settings=wandb.Settings(silent=True))",
    "mlflow": "import mlflow; mlflow.set_tracking_uri('file:mlruns'); mlflow.start_run()",
    "tensorboard": "",
}
LOOP = """
import sys, time, wattlaw
with wattlaw.track("loop", store="store", log_to=sys.argv[1], quiet=True) as run:
    for epoch in range(3):
        with run.window("train", epoch=epoch):
            for _ in range(10):
                time.sleep(0.05)
                run.step(samples=8)
        if sys.argv[1] == "wandb":
            wandb.log({"epoch": epoch})
if sys.argv[1] == "wandb":
    import json
    print(json.dumps(dict(wandb.run.summary)))
    wandb.finish()
"""


def logged(folder: Path, to: str) -> dict[str, list[float]]:
    """Return all values of each of wattlaw's metrics."""
    found = defaultdict(list)
    if to == "mlflow":
        for path in folder.glob("mlruns/0/*/metrics/wattlaw/*"):
            found[path.name] += [float(line.split()[1]) for line in path.read_text().splitlines()]
    else:
        (path,) = folder.glob("runs/*/events*")
        for _, record in tensorboard._records(path.read_bytes()):
            for tag, _, _, value in tensorboard._event(record):
                found[tag.removeprefix("wattlaw/")].append(value)
    return found


@pytest.mark.parametrize("to", OPEN)
def test_the_result_is_in_the_run_that_is_open(tmp_path, to):
    gpus = FakeGpus.create(tmp_path / "boards", 1)  # at 250 W
    offline = {
        "WANDB_MODE": "offline",
        "WANDB_ERROR_REPORTING": "false",
        "MLFLOW_ALLOW_FILE_STORE": "true",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        **{f"WANDB_{name}_DIR": str(tmp_path) for name in ("CACHE", "CONFIG", "DATA")},
    }
    line = ("-W", "error::UserWarning", "-c", OPEN[to] + LOOP, to)
    done = python(*line, cwd=tmp_path, env=environment() | gpus.environment() | offline)
    assert done.returncode == 0, done.stderr
    (record,) = Store(tmp_path / "store").records()
    if to == "wandb":
        texts = json.loads(done.stdout.splitlines()[-1])
        numbers = {name.removeprefix("wattlaw/"): [value] for name, value in texts.items()}
    else:
        numbers = logged(tmp_path, to)
    assert numbers["power_mean_w"] == pytest.approx([250.0], rel=0.02)
    assert numbers["energy_j"][0] == pytest.approx(250.0 * numbers["duration_s"][0], rel=0.02)
    if to == "mlflow":
        (folder,) = tmp_path.glob("mlruns/0/*/tags")
        texts = {f"wattlaw/{path.name}": path.read_text() for path in folder.glob("wattlaw/*")}
    elif to == "tensorboard":
        return
    assert (texts["wattlaw/verdict"], texts["wattlaw/energy_scope"]) == ("ok", "gpu")
    assert texts["wattlaw/run_id"] == record.run_id


def test_a_run_that_is_not_open_is_an_error_before_the_block(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file:{tmp_path}")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    for to, remedy in (("wandb", "wandb.init"), ("mlflow", "start_run"), ("tracker", "allowed")):
        with pytest.raises(ValueError, match=remedy):
            wattlaw.track("loop", store=tmp_path / "store", log_to=to)
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize(
    ("to", "module", "extra"),
    [("wandb", "wandb", "wandb"), ("mlflow", "mlflow", "mlflow"),
     ("tensorboard", "tensorboardX", "import")],
)  # fmt: skip
def test_a_missing_package_names_its_extra(tmp_path, monkeypatch, to, module, extra):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(
        NotAvailable, match=rf'{module} is needed; pip install "wattlaw\[{extra}\]"'
    ):
        wattlaw.track("loop", store=tmp_path / "store", log_to=to)


def test_an_error_of_the_logger_is_a_warning_and_the_run_is_stored(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tensorboardX.SummaryWriter.add_scalar", lambda *_: 1 / 0)
    with (
        pytest.warns(UserWarning, match="could not log to tensorboard"),
        wattlaw.track("loop", store=tmp_path / "s", log_to="tensorboard", quiet=True) as run,
    ):
        run.step()
    assert run.record.status == "done"
