"""Import of measurements as runs: accepted rows, rejected rows, and repeated imports."""

import csv
import json
import math
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from imported import made
from wattlaw.analysis.metrics.metrics import run_metrics
from wattlaw.api.imports import read_import
from wattlaw.cli.commands.import_files import import_files
from wattlaw.common.errors import BadInput
from wattlaw.store.store import Store, read_stores

MAP = "gpus=n,epoch_time_s=t"


@pytest.fixture
def home(tmp_path):
    return tmp_path / "store"


def bring(table: Path, mapping: str, store: Path, **named: str) -> int:
    return import_files([table], mapping, store, **named)


def metrics(store: Path) -> pd.DataFrame:
    return run_metrics(*read_stores([Store(store)]))


def bad_lines(error: str) -> dict[int, str]:
    found = {}
    for line in error.splitlines():
        if ": line " in line:
            number, why = line.split(": line ")[1].split(": ", 1)
            found[int(number)] = why
    return found


def rejected(table: Path, mapping: str) -> dict[int, str]:
    """Return all rejected rows by line; the command prints the first ones only."""
    lines = read_import(table, map=mapping).files[0].rejected
    return bad_lines("\n".join(f": {line}" for line in lines))


def files(store: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in store.rglob("*") if path.is_file()}


def test_a_table_becomes_runs_that_the_analyses_can_read(tmp_path, home, capsys):
    table = made(
        tmp_path,
        "t.csv",
        "n,t,b,cap,mhz,gpu_j,cpu_j,sm,acc,loss,ev",
        "2,10.5,32,250,1380,6300,400,87.5,0.71,1.2,3",
        "4,6,32,,,5000,,,,,",
    )
    fields = MAP + (
        ",local_batch=b,power_limit_w=cap,clock_limit_mhz=mhz,gpu_energy_j=gpu_j,"
        "cpu_energy_j=cpu_j,sm_util_percent=sm,metric=acc,metric_name=@accuracy,loss=loss,"
        "eval_time_s=ev,precision=@bf16,nodes=@2,samples=@1000,steps=@16,epochs=@3,"
        "energy_source=@counter,energy_verdict=@ok,options.lr=@0.1"
    )
    assert bring(table, fields, home, workload="resnet50", hardware="V100", study="mit") == 0
    assert "2 runs added" in capsys.readouterr().out
    one, other = metrics(home).to_dict("records")
    expected = {
        "workload": "resnet50", "options": '{"lr": "0.1"}', "hardware": "V100", "study": "mit",
        "launcher": "imported", "nodes": 2, "gpus": 2, "global_batch": 64, "local_batch": 32,
        "precision": "bf16", "power_limit_w": 250.0, "clock_limit_mhz": 1380.0,
        "dataset_fraction": 1.0, "repeat": 0, "metric_name": "accuracy", "epoch_time_s": 10.5,
        "train_time_s": 31.5, "samples_per_epoch": 1000.0,
        "steps_per_epoch": 16.0, "energy_per_epoch_j": 6700.0, "gpu_energy_per_epoch_j": 6300.0,
        "energy_is": "gpu+cpu, counter", "energy_verdict": "ok", "sm_util_mean": 0.875,
        "eval_time_s": 3.0, "metric": 0.71, "loss": 1.2, "epochs_trained": 3,
        "power_per_gpu_w": 300.0,
    }  # fmt: skip
    assert {name: one[name] for name in expected} == expected
    assert other["global_batch"] == 128
    assert other["energy_is"] == "gpu, counter"
    for name in ("power_limit_w", "sm_util_mean", "metric", "eval_time_s", "mem_util_mean"):
        assert math.isnan(other[name])


def test_bad_rows_are_rejected_by_line_and_others_imported(tmp_path, home, capsys):
    table = made(
        tmp_path,
        "t.csv",
        "n,t,b,g,note",
        "1,10,64,64,good",
        "2,abc,32,64,",
        "2,0,32,64,",
        "2,-3,32,64,",
        "2,inf,32,64,",
        "2,nan,32,64,",
        "2,1_0,32,64,",
        ",3,16,64,",
        "2.5,3,16,64,",
        "0,3,16,64,",
        "8,2,7,64,",
        "8,2,,60,",
        "8,,8,64,",
        "8,2,8",
        '8,2,8,64,"two',
        'lines"',
        "",
        "16.0,1e0,4,64,good",
    )
    assert bring(table, MAP + ",local_batch=b,global_batch=g", home) == 1
    told = capsys.readouterr()
    found = rejected(table, MAP + ",local_batch=b,global_batch=g")
    assert "2 runs added" in told.out
    assert "14 rows rejected" in told.out
    assert len(told.err.splitlines()) == 6
    assert "and 9 more" in told.err
    times, counts = dict.fromkeys(range(3, 9), "epoch_time_s"), dict.fromkeys((9, 10, 11), "gpus")
    others = {12: "global_batch", 13: "global_batch", 14: "epoch_time_s", 15: "has", 16: "has"}
    assert {line: why.split()[0] for line, why in found.items()} == times | counts | others
    assert sorted(metrics(home)["gpus"]) == [1, 16]


def test_a_table_without_a_good_row_makes_no_store(tmp_path, home):
    table = made(tmp_path, "t.csv", "n,t", "1,0", "x,1")
    with pytest.raises(BadInput, match="none of its 2 rows"):
        bring(table, MAP, home)
    with pytest.raises(BadInput, match="none of its 0 rows"):
        bring(made(tmp_path, "e.csv", "n,t"), MAP, home)
    assert not home.exists()


WRONG = {
    "gpus=n": "epoch_time_s or step_time_s or throughput is missing; required: gpus, epoch_time_s",
    MAP + ",step_time_s=t": "given both step_time_s and epoch_time_s; allowed: one of them",
    "gpus=n,epoch_time_s=time": 'no column "time"; the table has: n, t',
    MAP + ",speed=t": 'no field "speed"; allowed: gpus, epoch_time_s, step_time_s,',
    MAP + ",nodes": "allowed: field=column or field=@value",
    MAP + ",nodes=@0": 'nodes is "0"; allowed: a whole number from 1',
    MAP + ",power_w=t,gpu_energy_j=t": "allowed: one of them",
    MAP + ",sm_util=t,sm_util_percent=t": "sm_util is given twice",
    MAP + ',"nodes=t': "allowed: field=column",
    MAP + ",metric=t": "metric needs epochs",
}


@pytest.mark.parametrize("mapping", WRONG)
def test_an_invalid_mapping_gives_a_one_line_error(tmp_path, home, mapping):
    table = made(tmp_path, "t.csv", "n,t", "1,10")
    with pytest.raises(BadInput) as error:
        bring(table, mapping, home)
    assert WRONG[mapping] in str(error.value)
    assert str(error.value).isprintable()
    assert not home.exists()


def test_options_are_constants_of_the_mapping(tmp_path, home):
    table = made(tmp_path, "t.csv", "n,t,w", "1,10,vgg16")
    with pytest.raises(BadInput, match="workload is given twice"):
        bring(table, MAP + ",workload=w", home, workload="resnet50")
    for study in ("a b", "", "../x", "x" * 101):
        with pytest.raises(BadInput, match="study"):
            bring(table, MAP, home, study=study)
    assert bring(table, MAP, home) == 0
    assert metrics(home)[["workload", "study"]].to_numpy().tolist() == [["t", "t"]]


def test_json_lines_are_checked_one_by_one(tmp_path, home):
    lines = ['{"n": 1, "t": 10}', "nonsense", "[1, 2]", '{"n": true, "t": 5}', '{"n": 2, "t": "5"}',
             '{"n": 4, "t": null}', '{"n": 4, "t": NaN}', '{"n": 4, "t": {"s": 1}}',
             '{"n": 1e400, "t": 1}', "", '{"n": 4, "t": 2.5, "o": [1]}', "[" * 10**5]  # fmt: skip
    table = made(tmp_path, "t.jsonl", *lines)
    assert bring(table, MAP, home) == 1
    assert sorted(rejected(table, MAP)) == [2, 3, 4, 6, 7, 8, 9, 12]
    assert sorted(metrics(home)["gpus"]) == [1, 2, 4]


def test_importing_again_changes_nothing_and_more_rows_add(tmp_path, home, capsys):
    table = made(tmp_path, "t.csv", "n,t,loss", "1,10,nan", "1,11,2", "2,6,3")
    assert bring(table, MAP + ",loss=loss", home) == 0
    before = files(home)
    assert bring(table, MAP + ",loss=loss", home) == 0
    assert "0 runs added" in capsys.readouterr().out.splitlines()[-1]
    assert files(home) == before
    with table.open("a") as file:
        file.write("1,12,4\n4,3,5\n")
    assert bring(table, MAP + ",loss=loss", home) == 0
    assert "2 runs added" in capsys.readouterr().out
    found = metrics(home)
    assert found["epoch_time_s"].tolist() == [10, 11, 12, 6, 3]
    assert found["repeat"].tolist() == [0, 1, 2, 0, 0]
    assert before.items() <= files(home).items()


def test_a_changed_value_is_rejected_and_nothing_is_counted_twice(tmp_path, home, capsys):
    """A row put right in the middle would number those after it anew."""
    table = made(tmp_path, "t.csv", "n,t", "1,10", "1,11", "2,6")
    bring(table, MAP, home)
    made(tmp_path, "t.csv", "n,t", "1,10", "1,10.5", "1,11", "2,6", "2,7")
    before = files(home)
    assert bring(table, MAP, home) == 1
    told = capsys.readouterr()
    assert sorted(bad_lines(told.err)) == [3, 4]
    assert "remove" in bad_lines(told.err)[3]
    assert sorted(metrics(home)["epoch_time_s"]) == [6, 7, 10, 11]
    assert before.items() <= files(home).items()


def test_a_bad_row_keeps_its_number_among_the_repeats(tmp_path, home):
    table = made(tmp_path, "t.csv", "n,t", "1,10", "1,oops", "1,12")
    assert bring(table, MAP, home) == 1
    assert metrics(home)["repeat"].tolist() == [0, 2]
    assert bring(made(tmp_path, "t.csv", "n,t", "1,10", "1,11", "1,12"), MAP, home) == 0
    assert metrics(home)["epoch_time_s"].tolist() == [10, 11, 12]


def test_repeats_that_a_column_numbers_keep_their_numbers(tmp_path, home, capsys):
    table = made(tmp_path, "t.csv", "n,t,r", "1,10,7", "1,11,3", "1,12,7", "1,13,", "1,14,-1")
    assert bring(table, MAP + ",repeat=r", home) == 1
    found = bad_lines(capsys.readouterr().err)
    assert "line 2" in found[4]
    assert sorted(found) == [4, 5, 6]
    assert metrics(home).set_index("repeat")["epoch_time_s"].to_dict() == {3: 11, 7: 10}


def test_a_mapping_that_makes_other_settings_of_the_same_rows_is_warned_of(tmp_path, home, capsys):
    table = made(tmp_path, "t.csv", "n,t,b", "1,10,32")
    bring(table, MAP, home)
    assert bring(table, MAP + ",local_batch=b", home) == 0
    assert "has 1 other runs from a file of this name" in capsys.readouterr().err


def test_an_import_that_was_killed_is_completed_by_the_next(tmp_path, home):
    table = made(tmp_path, "t.csv", "n,t", "1,10", "2,6", "4,4")
    bring(table, MAP, home)
    whole = files(home)
    (folder,) = (home / "imports").glob("*/")
    folder.rename(home / ".importing.x")  # what a killed one leaves behind
    (home / ".importing.x" / "runs.parquet").unlink()
    assert bring(table, MAP, home) == 0
    assert files(home).items() >= whole.items()


HOSTILE = ["<script>alert(1)</script>", "a\nb", "\x1b[31m", "../../etc", "=cmd|'x'!A", "é" * 200,
           "training/v0.6/gnmt", "-", "\u202e", "{}", "a" * 150]  # fmt: skip


def test_hostile_names_are_kept_as_data(tmp_path, home):
    table = tmp_path / "t.jsonl"
    rows = [{"n": 1, "t": 1 + i, "w": text, "h": text} for i, text in enumerate(HOSTILE)]
    table.write_text("\n".join(json.dumps(row) for row in rows))
    assert bring(table, MAP + ",workload=w,hardware=h,options.x=w", home) == 0
    runs = Store(home).pandas("runs").merge(metrics(home)[["run_id", "epoch_time_s"]], on="run_id")
    runs = runs.sort_values("epoch_time_s")
    assert runs["hardware"].tolist() == HOSTILE
    assert [json.loads(text)["x"] for text in runs["options"]] == HOSTILE
    named = [
        json.loads(text).get("workload", w)
        for text, w in zip(runs["options"], runs["workload"], strict=True)
    ]
    assert named == HOSTILE
    assert runs["workload"].str.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}").all()


def test_too_long_or_invalid_names_are_rejected_in_one_short_line(tmp_path, home):
    names = ["x" * 201, "y" * 10**6, "\ud800", True, 5, None, "", "good"]
    table = tmp_path / "t.jsonl"
    table.write_text("\n".join(json.dumps({"n": 1, "t": 1, "w": name}) for name in names))
    assert bring(table, MAP + ",workload=w", home) == 1
    found = rejected(table, MAP + ",workload=w")
    assert sorted(found) == [1, 2, 3, 4, 6, 7]
    assert "allowed: a text of 1 to 200 characters" in found[2]
    assert all(len(why) < 200 and why.isprintable() for why in found.values())
    long = tmp_path / "long.csv"
    long.write_text("n,t,w\n1,1," + "z" * 10**6 + "\n2,1,good\n")
    assert bring(long, MAP + ",workload=w", home) == 1
    assert csv.field_size_limit() == 131072


LAYOUTS = (
    "gpus,nodes,tp,pp,mb,acc,gbs,zero,ckpt,sp,t,mem,status",
    "16,2,4,2,2,4,16,zero1,full,true,1.5,40.5,ok",
    "16,2,4,2,2,,16,FULL_SHARD,none,no,1.25,,",
    "16,2,4,2,2,4,,zero0,none,no,2,50 GiB,ok",
    "16,2,1,1,1,1,16,zero1,none,no,,,oom",
    "16,2,2,1,1,2,16,zero1,none,no,,,crashed_or_oom",
    "16,2,2,1,1,2,16,zero1,none,no,,,timeout",
    "16,2,4,2,2,3,16,zero1,none,no,1,,ok",
    "16,2,3,1,1,,16,zero1,none,no,1,,ok",
    "16,2,4,2,3,,16,zero1,none,no,1,,ok",
    "16,2,4,2,2,4,16,zero1 over 4,none,no,1,,ok",
    "16,2,4,2,2,4,16,zero1,none,no,,,ok",
)
MODEL = "model.layers=@4,model.hidden=@64,model.heads=@4,model.vocabulary=@100,model.sequence=@128"
LAYOUT_MAP = (
    "gpus=gpus,nodes=nodes,tp=tp,pp=pp,micro_batch=mb,gradient_accumulation=acc,global_batch=gbs,"
    "sharding=zero,checkpointing=ckpt,sequence_parallel=sp,step_time_s=t,peak_memory_gib=mem,"
    f"status=status,{MODEL}"
)


def test_layouts_of_a_table_are_settings_and_out_of_memory_is_a_failed_run(tmp_path, home):
    table = made(tmp_path, "layouts.csv", *LAYOUTS)
    read = read_import(table, map=LAYOUT_MAP)
    one, two, three, *failed = (run.record for run in read.runs)
    setting = one.spec.setting
    assert (setting.tp, setting.pp, setting.dp, setting.sharding) == (4, 2, 2, "zero1")
    assert (setting.gradient_accumulation, setting.micro_batch, setting.global_batch) == (4, 2, 16)
    assert (setting.checkpointing, setting.sequence_parallel) == ("full", True)
    assert (one.facts.dp, one.facts.micro_batch, one.facts.tokens_per_sample) == (2, 2, 128)
    assert one.facts.peak_memory_bytes == 40.5 * 2**30
    assert one.spec.workload.model is not None
    assert one.spec.workload.model.layers == 4
    assert two.spec.setting == replace(
        setting, sharding="fsdp", checkpointing="none", sequence_parallel=False
    )
    assert (three.spec.setting.sharding, three.spec.global_batch) == ("none", 16)
    assert three.facts.peak_memory_bytes == 50 * 2**30
    assert [record.status for record in failed] == ["failed"] * 3
    memory = [(record.reason or "").startswith("out of memory") for record in failed]
    assert memory == [True, True, False]
    assert sorted(rejected(table, LAYOUT_MAP)) == [8, 9, 10, 11, 12]
    assert bring(table, LAYOUT_MAP, home) == 1
    rows = Store(home).arrow("runs").to_pylist()
    assert sorted(row["status"] != "done" for row in rows) == [False] * 3 + [True] * 3
    assert {json.loads(row["network"])["layers"] for row in rows} == {4}
    unsharded = next(row for row in rows if (row["reason"] or "") == "out of memory")
    assert json.loads(unsharded["layout"])["sharding"] == "zero1"


def test_columns_named_as_fields_or_as_known_measurements_need_no_map(tmp_path, home):
    table = made(
        tmp_path,
        "known.csv",
        "model,hardware,gpus,tp,zero_or_fsdp,micro_batch,grad_acc,global_batch,seq_len,tokens_per_s_per_gpu,"
        "step_time_s,memory_gib,mfu_pct",
        "3B,H100,8,2,zero1,4,2,32,1024,512,8,40.5,42",
    )
    (run,) = read_import(table).runs
    setting, facts = run.record.spec.setting, run.record.facts
    assert (setting.tp, setting.sharding, setting.global_batch) == (2, "zero1", 32)
    assert (facts.tokens_per_sample, facts.peak_memory_bytes) == (1024, 40.5 * 2**30)
    assert run.windows[0]["duration_s"] == 32 * 1024 / (512 * 8)
    with pytest.raises(BadInput, match=r"docs/formats.md.*columns a, b: gpus is missing"):
        read_import(made(tmp_path, "other.csv", "a,b", "1,2"))


def test_gradient_accumulation_alone_is_of_the_training_not_a_layout(tmp_path):
    table = made(tmp_path, "t.csv", "n,b,t,a", "2,16,1.5,4", "4,16,1,2")
    first, second = read_import(
        table, map="gpus=n,global_batch=b,step_time_s=t,gradient_accumulation=a"
    ).runs
    assert [run.record.spec.train.gradient_accumulation for run in (first, second)] == [4, 2]
    assert first.record.spec.setting.layout == {}
    assert (first.record.facts.micro_batch, second.record.facts.micro_batch) == (2, 2)


FORMS = {  # the same three rows as people and programs write them
    "semicolons": "n;t;w\n1;1234.5;a\n2;0.85;b\n4;1234;a b\n",
    "tabs": "n\tt\tw\n1\t1234.5\ta\n2\t.85\tb\n4\t1234\ta b\n",
    "quotes": 'n,t,w\n1,"1234.5",a\n2,8.5e-1,b\n4,"1234",a b\n',
    "bars": "| n | t | w |\n|---|--:|--|\n|1 | 1234.5 | a |\n| 2 | .85 | b |\n| 4 | 1234 | a b |\n",
    "a row of units": "n,t,w\n-,[s],\n1,1234.5,a\n2,0.85,b\n4,1234,a b\n",
    "empty rows and columns": "n,t,w,,\n1,1234.5,a,,\n,,,,\n2,0.85,b,,\n4,1234,a b,,,\n",
    "totals": "n,t,w\n1,1234.5,a\n2,0.85,b\n4,1234,a b\nAverage,823,\nTotal:,2469,\n",
    "comments": "n,t,w\n1,1234.5,a\n# a remark\n2,0.85,b\n4,1234,a b\n",
}


@pytest.mark.parametrize(
    ("form", "encoding"),
    [*((form, "utf-8") for form in FORMS), ("tabs", "utf-8-sig"), ("tabs", "utf-16")],
)
def test_tables_of_people_are_read_with_one_meaning(tmp_path, form, encoding):
    path = tmp_path / "t.csv"
    path.write_bytes(FORMS[form].encode(encoding))
    read = read_import(path, map=MAP + ",workload=w")
    assert [run.record.spec.setting.gpus for run in read.runs] == [1, 2, 4]
    assert [run.windows[0]["duration_s"] for run in read.runs] == [1234.5, 0.85, 1234.0]
    assert read.runs[1].record.spec.workload.name == "b"
    assert not read.files[0].rejected
    lines = sum(bool(line.strip()) for line in FORMS[form].splitlines())
    left_out = sum(each.count for each in read.files[0].left_out)
    assert left_out + 3 + 1 + (form == "a row of units") == lines


def test_a_row_out_of_memory_is_a_run_without_a_time(tmp_path):
    (tmp_path / "t.csv").write_text("n,t,w\n1,9,a\n8,OOM,a\n")
    *_, run = read_import(tmp_path / "t.csv", map=MAP + ",workload=w").runs
    record, windows = run.record, run.windows
    assert (record.spec.setting.gpus, record.state, windows) == (8, "out of memory", [])


SEPARATED = "with separators that are not read"
NUMBERS = {  # a cell of GPUs, samples, or a time: what it is, or why it is none
    ("gpus", "8192"): 8192, ("gpus", "8.0"): 8,
    ("gpus", "8,192"): SEPARATED, ("gpus", "1 024"): SEPARATED, ("gpus", "1,5"): SEPARATED,
    ("gpus", "8k"): "allowed: a",
    ("gpus", "4x"): "allowed: a", ("gpus", "~8"): "allowed: a", ("gpus", "4-8"): "allowed: a",
    ("gpus", "1_0"): SEPARATED,
    ("epoch_time_s", "1,234"): SEPARATED, ("epoch_time_s", "12.345,6"): SEPARATED,
    ("epoch_time_s", "2,5 min"): SEPARATED, ("epoch_time_s", "1.5k"): "allowed: a",
    ("epoch_time_s", "12 ± 1"): "allowed: a", ("epoch_time_s", "<5"): "allowed: a",
    ("epoch_time_s", "$5"): "allowed: a", ("epoch_time_s", "97%"): "allowed: a",
    ("epoch_time_s", "1:30"): "allowed: a", ("epoch_time_s", "01:30:00"): 5400,
    ("epoch_time_s", "1 day, 01:30:00"): 91_800, ("epoch_time_s", "2.5 min"): 150,
    ("sm_util", "97%"): 0.97, ("sm_util_percent", "97%"): 0.97,
    ("dataset_fraction", "50%"): 0.5, ("metric", "97%"): "allowed: a",
    ("power_w", "1.2 kW"): 1200, ("power_w", "1_200"): SEPARATED,
    ("samples", "1281167"): 1_281_167, ("global_batch", "4096"): 4096,
}  # fmt: skip


@pytest.mark.parametrize(("field", "cell"), NUMBERS)
def test_a_number_is_read_where_it_can_mean_one_thing_only(tmp_path, field, cell):
    known = {"gpus": "1", "epoch_time_s": "10", "epochs": "1"} | {field: cell}
    path = tmp_path / "t.jsonl"
    path.write_text(json.dumps(known, ensure_ascii=False))
    file = (read := read_import(path, map=",".join(f"{name}={name}" for name in known))).files[0]
    expected = NUMBERS[field, cell]
    if isinstance(expected, str):
        assert expected in file.rejected[0]
        return
    (run,) = read.runs
    window = run.windows[0]
    found = {
        "gpus": run.record.spec.setting.gpus, "epoch_time_s": window["duration_s"],
        "sm_util": window["sm_util_mean"], "sm_util_percent": window["sm_util_mean"],
        "power_w": (window.get("gpu_energy_j") or 0) / 10, "samples": window["samples"],
        "dataset_fraction": run.record.spec.setting.dataset_fraction,
        "global_batch": run.record.spec.setting.global_batch,
    }[field]  # fmt: skip
    assert found == pytest.approx(expected)


def test_a_row_with_a_line_break_is_rejected_with_the_line_on_which_it_ends(tmp_path):
    cell = ("n,t,w", '1,10,"a', "", 'b, c"', "2,5,d")
    stray = ('2,5,"c', '8,2,"', "16,1,x", '4,3,"e', "8,2,e")
    read = read_import(made(tmp_path, "t.csv", *cell, *stray), map=MAP)
    assert [run.record.spec.setting.gpus for run in read.runs] == [2, 16]
    why = "has a line break in a cell, or an unclosed quote; it ends on line"
    lines = ((2, 4), (6, 7), (9, 10))
    assert read.files[0].rejected == tuple(f"line {a}: {why} {b}" for a, b in lines)
