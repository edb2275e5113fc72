"""Decisions over parallel layouts: what fits into memory comes first."""

import numpy as np

from conftest import records
from reduced import WORKLOADS
from wattlaw.analysis.decide.evidence import Candidate, may_fit_memory
from wattlaw.analysis.decide.next_runs import CERTAIN, plan
from wattlaw.analysis.decide.regret import UNFIT, improvements, regrets
from wattlaw.analysis.predict import Observation
from wattlaw.analysis.predict.peak_memory import LEAST_FIT, Memory, Peak
from wattlaw.api.studies import run
from wattlaw.study.network import Network
from wattlaw.study.question import Question
from wattlaw.study.setting import Setting

NETWORK = Network(layers=32, hidden=4096, heads=32, ffn=11008, vocabulary=32000, sequence=4096)
MEMORY_GIB = 80.0
QUESTION = Question("time", tolerance=0.05)


def layout(micro_batch, **values):
    """Return a setting of 16 GPUs and a global batch of 128."""
    sizes = {"precision": "bf16", "sharding": "zero1", **values}
    return Setting.packed(16, 8, local_batch=8.0, **sizes).in_micro_batches(micro_batch)


LAYOUTS = [
    layout(micro, tp=tp, pp=pp)
    for tp in (1, 2, 4, 8)
    for pp in (1, 2, 4)
    for micro in (1, 2, 4, 8)
    if 16 % (tp * pp) == 0 and 128 % (16 // (tp * pp) * micro) == 0
]


def step_s(item):
    """Return a step time: work, collectives of tp that a node's bounds make slower, a bubble."""
    work = 9.0 * (1 + 0.12 * np.log2(item.tp)) * (1 + 0.15 / item.micro_batch)
    return float(work * (1 + (item.pp - 1) / item.gradient_accumulation))


def peak_gib(item):
    parameters = NETWORK.parameters / (item.tp * item.pp) / 2**30
    tokens = item.micro_batch * NETWORK.sequence * NETWORK.hidden / 2**30
    activations = 30 * tokens * NETWORK.layers / item.pp / item.tp * min(item.pp, 2)
    return parameters * (6 + 12 / item.dp) + activations + 2.0


def test_a_decision_runs_little_that_does_not_fit_and_nothing_that_hardly_can():
    left = [Candidate(item, 20, 60.0) for item in LAYOUTS]
    seen, peaks, chances = [], [], []
    while True:
        memory = Memory(NETWORK, MEMORY_GIB, tuple(peaks))
        state = plan(QUESTION, left, seen, settings=LAYOUTS, memory=memory)
        if state.stopped_because:
            break
        candidate = state.proposals[0].candidate
        setting = candidate.setting
        chances.append(memory.fits([setting]).mean())
        left.remove(candidate)
        fitted = peak_gib(setting) < MEMORY_GIB
        peaks.append(Peak(setting, NETWORK, MEMORY_GIB, peak_gib(setting) * fitted or None, fitted))
        if fitted:
            seen.append(Observation(setting, step_s(setting), network=NETWORK))
    able = [item for item in LAYOUTS if peak_gib(item) < MEMORY_GIB]
    assert len(able) < len(LAYOUTS)
    assert state.stopped_because == CERTAIN
    assert state.setting in [item.setting for item in seen]
    assert step_s(state.setting) <= 1.05 * min(map(step_s, able))
    assert min(chances) >= LEAST_FIT and chances[0] >= 0.5
    assert len(peaks) < len(LAYOUTS) / 2
    assert len(peaks) - len(seen) < len(LAYOUTS) - len(able)


def test_what_did_not_fit_says_nothing_about_other_layouts():
    full = [layout(4, tp=2)]
    assert not may_fit_memory(layout(8, tp=2), full)
    assert may_fit_memory(layout(2, tp=2), full)
    assert may_fit_memory(layout(8, tp=4), full)
    # More copies share the optimizer.
    few = Setting.packed(4, 8, local_batch=8.0, tp=2, precision="bf16", sharding="zero1")
    assert may_fit_memory(layout(8, tp=2), [few.in_micro_batches(4)])


def test_a_layout_is_as_bad_where_it_does_not_fit_as_if_it_were_three_times_as_slow():
    times = np.array([[1.0, np.inf], [1.0, 0.5]])
    found = regrets(QUESTION, LAYOUTS[:2], times * LAYOUTS[0].samples, None)
    assert found.tolist() == [[0.0, UNFIT], [1.0, 0.0]]


def test_a_run_is_worth_what_choosing_its_setting_may_improve():
    leading = np.array([0.0, 0.1, 0.1, 0.0])
    others = np.array([[0.2, 0.0, 0.05, 0.3], [np.inf] * 4]).T
    assert np.allclose(improvements(leading, others), [(0.1 + 0.05) / 4, 0.0])


def test_a_real_study_of_layouts_decides_and_ends(write_decide, tmp_path):
    study = write_decide(
        {"minimize": "time", "tolerance": 0.5, "budget": {"runs": 2}},
        workloads=[{"name": "gpt", "options": WORKLOADS["gpt"].options}],
        sweeps=[{"gpus": [2], "global_batch": [8], "tp": [1, 2], "micro_batch": [2, 4]}],
        measure={"steps": 6, "warmup_steps": 2, "sample_hz": 20},
        launch={"kind": "local", "gpus_per_node": 2, "threads_per_worker": 1}, repeats=1,
    )  # fmt: skip
    outcome = run(study, tmp_path / "store")
    assert outcome.stopped_because in ("certain", "no run fits the budget")
    assert (outcome.failed, outcome.done + outcome.not_needed + outcome.left) == (0, 4)
    done = [item.spec.setting for item in records(tmp_path / "store").values()
            if item.status == "done"]  # fmt: skip
    assert 0 < len(done) <= 2
    decision = outcome.results.decision
    micro_batches = {(item.tp, item.micro_batch) for item in done}
    setting = decision["setting"]
    assert setting["gpus"] == 2 and setting["global_batch"] == 8
    assert decision["runs"] == len(done)
    assert len(decision["surprises"]) == len(micro_batches) - 1
    tp = setting.get("tp", 1)
    if decision["stopped_because"] == "certain":
        assert (tp, 8 * tp / 2 / setting["gradient_accumulation"]) in micro_batches
