"""Good inputs that the fuzzers damage: stores, tables, site files."""

import json
from pathlib import Path

import yaml

import made_studies
import made_tables
from made_runs import made_record, made_spec
from made_stores import write_store
from soak.sandbox import REPOSITORY
from wattlaw.store.record import DeviceReport, Facts, SamplerReport
from wattlaw.store.run_folder import RunFolder
from wattlaw.study.model import Measure
from wattlaw.study.setting import Setting

HOST = "node1"
TABLE = """\
network,gpus,batch,time,limit,power,optimizer,acc,epochs
resnet50,1,32,100.5,,250,sgd,0.9,3
resnet50,2,32,52.25,200,480,sgd,0.91,3
resnet50,4,32,28,200,930,adam,0.92,3
resnet50,8,32,15.5,,1800,sgd,0.93,3
bert,1,16,300,150,210,adam,0.4,3
"""
MAP = (
    "gpus=gpus,epoch_time_s=time,workload=network,local_batch=batch,power_limit_w=limit,"
    "power_w=power,options.optimizer=optimizer,metric=acc,metric_name=@accuracy,epochs=epochs"
)
RUN_ID = "00000000000000aa"
WINDOW_NS = 1_000_000_000
START_NS = 1_700_000_000_000_000_000


def build(folder: Path) -> None:
    runs, epochs = made_tables.study(source="counter")
    epochs = epochs.assign(gpu_energy_j=epochs["cpu_energy_j"] * 10)
    keep = runs[(runs.global_batch <= 64) & (runs.repeat < 1)]
    write_store(folder / "store", keep, epochs[epochs.run_id.isin(keep.run_id)], samples=20)
    limits = made_studies.mit(counts=(1, 2), repeats=1)
    few = limits.runs.head(8)
    own = limits.epochs[limits.epochs.run_id.isin(few.run_id)]
    write_store(folder / "limits", few, own, samples=20)
    _live_run(folder / "live")


def _live_run(folder: Path) -> None:
    measure = Measure(epochs=2, warmup_epochs=1)
    spec = made_spec(Setting(gpus=1, local_batch=32), measure=measure)
    run = RunFolder(folder / RUN_ID)
    run.write(made_record(RUN_ID, spec, attempts=1, status="running"), durable=False)
    live = run.live(1)
    live.mkdir(parents=True)
    names = "epoch,phase,warmup,start_ns,duration_s,interrupted,from_step,samples,steps,"
    names += "loss,metric,metrics"
    lines = [names]
    for number in range(4):
        phase = ("train", "evaluate")[number % 2]
        metric = '0.9,"{""accuracy"": 0.9}"' if number % 2 else ","
        start = START_NS + number * WINDOW_NS
        lines.append(f"{number // 2},{phase},{number < 2},{start},0.9,False,0,1000,31,0.5,{metric}")
    (live / f"windows.{HOST}.csv").write_text("\n".join(lines) + "\n")
    lines = ["device,kind,t_ns,power_w,energy_j,power_source,sm_util,mem_util"]
    for number in range(60):
        t_ns = START_NS - WINDOW_NS + number * WINDOW_NS // 10
        lines.append(f"GPU-0,gpu,{t_ns},200.0,{1000 + 20 * number},measured,0.9,0.4")
    (live / f"telemetry.{HOST}.csv").write_text("\n".join(lines) + "\n")
    report = SamplerReport(
        host=HOST, samples=60, duration_s=6.0, cpu_s=0.1, start_cpu_s=0.1,
        devices=(DeviceReport(id="GPU-0", kind="gpu", name="A100", facts={"power": "instant"}),),
        meters={}, unavailable={}, problems=(),
    )  # fmt: skip
    (live / f"sampler.{HOST}.json").write_text(report.model_dump_json())
    facts = Facts(hosts=(HOST,), hardware="A100", metric="accuracy", software={"torch": "2"})
    (live / f"facts.{HOST}.json").write_text(facts.model_dump_json())
    (live / f"ended.{HOST}.json").write_text(json.dumps({"code": 0}))
    (live / f"limits.{HOST}.json").write_text("[]")
    run.log_path.write_text("== attempt 1, ==\nline\n")


def studies() -> list[str]:
    folder = REPOSITORY / "src" / "wattlaw" / "examples"
    texts = [path.read_text() for path in sorted(folder.glob("*.yaml"))]
    return [text for text in texts if "sweeps" in (yaml.safe_load(text) or {})]
