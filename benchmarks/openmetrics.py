"""Processor time of ``run --openmetrics`` per run that ends and per update, on a simulated study.

Run: ``python benchmarks/openmetrics.py``.
"""

import tempfile
import time
from pathlib import Path

import pyarrow.parquet  # noqa: F401 - its import is not a cost of each run

import wattlaw
from wattlaw.exporting import openmetrics
from wattlaw.store.store import Store

STUDY = """
name: benchmark
workloads: [{name: resnet50}]
sweeps: [{gpus: [1, 2, 4, 8], global_batch: [256]}]
repeats: 50
measure: {epochs: 3, warmup_epochs: 1}
launch: {kind: simulated, simulation: {hardware: mit-v100}}
"""


def main() -> None:
    """Print milliseconds per run and per update."""
    openmetrics._PERIOD_S = 0.1
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "study.yaml").write_text(STUDY)
        wattlaw.run(folder / "study.yaml", folder / "store")
        store = Store(folder / "store")
        records = store.records()
        begin_s = time.process_time()
        file = folder / "x.prom"
        with openmetrics.MetricsFile(file, "benchmark", store, len(records)) as metrics:
            for record in records:
                metrics.ended(record, is_new=False)
        ended_s = time.process_time()
        with openmetrics.MetricsFile(file, "benchmark", store, 1) as metrics:
            metrics.started(records[0])
            time.sleep(5)
        updated_s = time.process_time()
    print(f"per run that ends: {(ended_s - begin_s) / len(records) * 1e3:.2f} ms")
    print(f"per update: {(updated_s - ended_s) / 50 * 1e3:.2f} ms")


if __name__ == "__main__":
    main()
