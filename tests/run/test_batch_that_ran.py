"""The batch that ran, compared with the batch of the setting, and what follows from it."""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import yaml
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import paths
import wattlaw
from conftest import records
from conftest import wattlaw as run_wattlaw
from made_stores import write_store
from made_tables import frames, run_row, window_row
from wattlaw.api.deciding import evidence_of
from wattlaw.api.studies import load_study, run
from wattlaw.cli.main import main
from wattlaw.running.instrumentation.hook._wattlaw.loaders import LoadedSamples, count_samples
from wattlaw.running.steps import batch_that_ran
from wattlaw.store.store import Store
from wattlaw.study.not_as_declared import OTHER_BATCH

SCRIPTS = paths.SCRIPTS
#: Environment of scripts/ddp.py on two workers, for a local batch of 8, and what it trains.
VARIANTS = {
    "right": ("BATCH={local_batch}", 16),
    "each-trains-all": ("BATCH={global_batch}", 32),
    "divided-twice": ("BATCH=4", 8),  # {local_batch} / gpus
    "fixed": ("BATCH=5", 10),
    "accumulated": ("BATCH={local_batch} ACCUMULATE=4", 64),
}


@pytest.mark.parametrize(
    ("steps_by_samples", "declared", "ran"),
    [
        ({128: 40}, 128, None),
        ({256: 40}, 128, 256),
        ({128: 20, 22: 20}, 128, None),  # two steps in an epoch, the last one smaller
        ({128: 20, 22: 20}, 64, 128),
        ({96: 20, 160: 20}, 128, None),  # buckets
        ({50 + n: 3 for n in range(30)}, 64, None),  # as many tokens in each step
        ({64: 5, 128: 5, 256: 30}, 256, None),  # the batch grows at first
        ({20: 1, 16: 38, 12: 1}, 16, None),  # fetched ahead
        ({8: 13, 0: 13}, 4, None),  # the steps of a loop that takes two for each batch
        ({}, 128, None),
    ],
)
def test_the_batch_that_ran_is_that_of_usual_steps(steps_by_samples, declared, ran):
    assert batch_that_ran(steps_by_samples, declared) == ran


class _Loops:
    """Loops over loaders in this process, with the hook for loaders."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        self.loaded, self.steps = LoadedSamples(), 0
        self.samples: list[int] = []

    def fail(self, part: str, error: BaseException) -> None:
        self.problems.append(f"{part}: {error}")

    def step(self) -> None:
        before, unknown = self.loaded.samples, self.loaded.unknown
        self.loaded.step()
        self.steps += 1
        if self.loaded.unknown == unknown:
            self.samples.append(self.loaded.samples - before)


@pytest.fixture
def loops(monkeypatch) -> _Loops:
    module = torch.utils.data.dataloader
    iterators = module._BaseDataLoaderIter
    for name in ("_next_index", "__next__"):  # the hook replaces them
        monkeypatch.setattr(iterators, name, getattr(iterators, name))
    recorder = _Loops()
    count_samples(module, recorder)
    return recorder


def rows(count: int) -> TensorDataset:
    return TensorDataset(torch.zeros(count, 3))


class _Stream(IterableDataset):
    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(torch.zeros(100, 3))


LOADERS = {
    "plain": lambda: DataLoader(rows(50), batch_size=8),
    "streamed": lambda: DataLoader(_Stream(), batch_size=8),
    "packed": lambda: DataLoader(
        _Stream(), batch_size=8, collate_fn=lambda xs: torch.cat(xs)[None]
    ),
}


def _each(loops: _Loops, name: str) -> None:
    for _ in range(4):
        for _ in LOADERS[name]():
            loops.step()


def _evaluated(loops: _Loops) -> None:
    held_out = DataLoader(rows(500), batch_size=100)
    for _ in range(4):
        for number, _ in enumerate(DataLoader(rows(50), batch_size=8)):
            loops.step()
            for _ in zip(range(2 if number == 3 else 0), held_out, strict=False):
                pass  # with gradients, and not to its end
        for _ in held_out:
            pass


def _accumulated(loops: _Loops) -> None:
    for _ in range(4):
        for number, _ in enumerate(DataLoader(rows(100), batch_size=8), 1):
            if number % 4 == 0:
                loops.step()


@pytest.mark.parametrize("loop", ["plain", "streamed", "packed", _evaluated, _accumulated])
def test_the_samples_of_a_step_are_those_of_the_loader_that_trains(loop, loops):
    _each(loops, loop) if isinstance(loop, str) else loop(loops)
    counts, usual = Counter(loops.samples), 32 if loop is _accumulated else 8
    assert not loops.problems
    assert batch_that_ran(counts, usual) is None
    assert batch_that_ran(counts, 3) == usual
    assert loops.loaded.several_loaders <= loops.steps / 2


def test_a_step_of_two_loaders_is_known_as_such(loops):
    few, many = DataLoader(rows(64), batch_size=8), DataLoader(rows(448), batch_size=56)
    for _ in zip(few, many, strict=True):
        loops.step()
    assert loops.loaded.several_loaders == loops.steps == 8


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> tuple[Path, str]:
    """Measure variants of a script on two workers; return the store and the output."""
    folder = tmp_path_factory.mktemp("batch")
    script = ["{python}", str(SCRIPTS / "ddp.py")]
    workloads = [
        {"name": name, "command": ["env", *words.split(), *script]}
        for name, (words, _) in VARIANTS.items()
    ]
    study = {
        "name": "batches",
        "workloads": workloads,
        "sweeps": [
            {"gpus": [2], "local_batch": [8]},
            {"gpus": [1], "local_batch": [8], "workloads": ["each-trains-all", "fixed"]},
        ],
        "measure": {"steps": 15, "warmup_steps": 3},
        "launch": {"gpus_per_node": 2, "threads_per_worker": 1},
    }
    (folder / "study.yaml").write_text(yaml.safe_dump(study))
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"EPOCHS": "100000", "STEP_S": "0.01"}.items():
            patch.setenv(name, value)
        done = run_wattlaw("run", folder / "study.yaml", "--store", folder / "store", cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "store", done.stdout


@pytest.mark.parametrize(("name", "ran"), [(name, ran) for name, (_, ran) in VARIANTS.items()])
def test_the_table_of_runs_has_the_batch_that_ran(name, ran, trained):
    runs = Store(trained[0]).pandas("runs")
    (row,) = runs[(runs["workload"] == name) & (runs["gpus"] == 2)].to_dict("records")
    assert (row["global_batch"], row["local_batch"]) == (ran, ran // 2)
    (record,) = [r for r in records(trained[0]).values() if r.run_id == row["run_id"]]
    assert record.spec.setting.global_batch == 16  # as declared
    if name == "right":
        assert row["global_batch_declared"] != row["global_batch_declared"]  # missing
        assert not [note for note in record.notes if "batch" in note]
    else:
        assert row["global_batch_declared"] == 16
        numbers = [re.findall(r"\d+", note) for note in record.notes if "batch" in note]
        assert numbers == [[str(ran), "16", str(ran)]]


def test_run_status_and_fit_warn_of_each_workload_whose_batch_differs(trained, capsys):
    assert main(["status", str(trained[0]), "--json"]) == 0
    warned = json.loads(capsys.readouterr().out)["warnings"]
    texts = {item["text"].split(" of ")[1].split()[0]: item["text"] for item in warned}
    assert {item["code"] for item in warned} == {OTHER_BATCH}
    assert set(texts) == set(VARIANTS) - {"right"}
    assert "32 instead of 16 on 2 GPUs" in texts["each-trains-all"]
    assert "{local_batch}" in texts["each-trains-all"]
    assert "{global_batch}" in texts["divided-twice"]
    assert "5 instead of 8 on 1 GPU, 10 instead of 16 on 2 GPUs" in texts["fixed"]
    assert [f"Warning: {text}" for text in texts.values()] == [
        line for line in trained[1].splitlines() if line.startswith("Warning: ")
    ]
    main(["fit", str(trained[0]), "--json"])
    shown = capsys.readouterr()
    assert texts["fixed"] in shown.err.replace("wattlaw: ", "")
    laws = json.loads(shown.out)
    # The other script trains 8 samples on one worker and 32 on two: that is no series.
    assert [(law["group"]["workload"], law["group"]["local_batch"]) for law in laws] == [
        ("fixed", 5)
    ]


def test_advice_is_about_the_batch_that_ran(trained, capsys):
    for name in ("each-trains-all", "accumulated"):
        assert main(["advise", str(trained[0]), "--workload", name, "--json"]) == 0
        advice = json.loads(capsys.readouterr().out)
        assert OTHER_BATCH in {item["code"] for item in advice["warnings"]}
        batches = {item["global_batch"] for item in advice["pareto"]}
        assert batches <= {8, 32, 64} and 16 not in batches


def test_settings_that_ran_the_same_batch_are_repeats_of_one(tmp_path):
    runs, windows = [], []
    for number, declared in enumerate((64, 128, 256)):
        ran = {} if declared == 64 else {"global_batch_declared": declared}
        name = f"{number:016}"
        runs.append(run_row(name, gpus=2, global_batch=64, local_batch=32, **ran))
        windows.append(window_row(name, 1, duration_s=10.0 + 0.1 * number))
    path = tmp_path / "store"
    write_store(path, *frames(runs, windows))
    advice = wattlaw.open(path).advise()
    assert [(item.global_batch, item.repeats) for item in advice.pareto] == [(64, 3)]


@pytest.fixture
def tracked(tmp_path) -> Callable[..., wattlaw.Track]:
    def track(samples: list[int], **options: object) -> wattlaw.Track:
        with wattlaw.track("x", tmp_path, quiet=True, **options) as run:
            for count in samples:
                run.step(samples=count)
        return run

    return track


@pytest.mark.parametrize(
    ("samples", "options", "ran"),
    [
        ([64] * 10, {"global_batch": 64}, None),
        ([32] * 10, {"global_batch": 64, "gpus": 2}, 32),
        ([None] * 10, {"global_batch": 64}, None),
    ],
)
def test_a_tracked_run_has_the_batch_of_its_steps(samples, options, ran, tracked, tmp_path):
    record = tracked(samples, **options).record
    assert record.facts.global_batch == ran
    assert any("batch" in note for note in record.notes) is (ran is not None)
    (row,) = Store(tmp_path).pandas("runs").to_dict("records")
    assert row["global_batch"] == (ran or options["global_batch"])


def test_a_decision_counts_a_run_as_the_setting_that_ran(write_decide, tmp_path):
    path, store = write_decide({"minimize": "gpu_hours"}), tmp_path / "store"
    run(path, store)
    loaded = load_study(path)
    done = next(r for r in records(store).values() if r.status == "done")
    declared = done.spec.setting
    facts = done.facts.model_copy(update={"global_batch": 3 * declared.global_batch})
    Store(store).folder(done.run_id).write(done.model_copy(update={"facts": facts}))
    inputs = evidence_of(loaded.plan.study, loaded.plan.runs, store)
    for planned in loaded.plan.runs:  # repeats will run the same batch
        is_same = planned.setting == declared
        factor = 3 if is_same else 1
        setting = inputs.candidates[planned.run_id].setting
        assert setting.global_batch == factor * planned.setting.global_batch
    assert 3 * declared.local_batch in {
        item.setting.local_batch for item in inputs.job.observations
    }
    assert OTHER_BATCH in {warning.code for warning in inputs.job.warnings}
