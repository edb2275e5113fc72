"""Makes specifications and records of runs, of which a test names what it depends on."""

from typing import Any

from wattlaw.store.record import RunRecord
from wattlaw.study.model import Measure, RunSpec, WorkloadSpec
from wattlaw.study.setting import Setting


def made_spec(setting: Setting, **told: Any) -> RunSpec:
    usual = {
        "workload": WorkloadSpec(name="digits-cnn"),
        "repeat": 0,
        "measure": Measure(),
        "launch_kind": "local",
    }
    return RunSpec(setting=setting, **(usual | told))


def made_record(run_id: str, spec: RunSpec, **told: Any) -> RunRecord:
    return RunRecord(
        run_id=run_id, spec=spec, **({"study": "s", "seed": 0, "order_seed": 0} | told)
    )
