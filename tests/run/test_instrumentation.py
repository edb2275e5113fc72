"""Steps that unmodified scripts take, as their processes record them."""

import ast
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import python
from paths import SCRIPTS
from wattlaw.running.instrumentation import instrumented_environment
from wattlaw.running.instrumentation.records import ProcessSteps, StepsFolder
from wattlaw.running.instrumentation.steady_state import summarise


def environment(folder: Path) -> dict[str, str]:
    return instrumented_environment(os.environ | {"OMP_NUM_THREADS": "1"}, folder / "steps")


def run(folder: Path, *line: object, **more: str) -> tuple[list[dict[str, Any]], str]:
    """Run Python with the hook; return the results that the script prints, and its output."""
    done = python(*line, env=environment(folder) | more, check=True, timeout=300)
    output = done.stdout + done.stderr
    return [json.loads(line) for line in re.findall(r"RESULT (.*)", output)], output


def processes(folder: Path) -> dict[int, ProcessSteps]:
    return {process.pid: process for process in StepsFolder(folder / "steps").read()}


def test_steps_samples_and_times_of_a_plain_script_are_exact(tmp_path):
    options = "--samples 145 --epochs 4 --step-s 0.05 --accumulate 3 --loader-workers 1 --bf16"
    line = (SCRIPTS / "plain.py", *options.split())
    ((of_script,), _) = run(tmp_path, *line)
    (process,) = processes(tmp_path).values()
    assert process.pid == of_script["pid"]
    assert (process.problems, process.is_ended) == ((), True)
    summary = summarise([process])
    assert summary.steps == of_script["steps"] == 20
    # The batches after the last step of an epoch belong to the first step of the next.
    assert summary.samples_seen == pytest.approx(of_script["samples"], abs=10)
    assert summary.gradient_accumulation == 3
    assert (summary.precision, summary.world_size, summary.parallelism) == ("bf16", 1, "none")
    assert (summary.parameters, summary.gradient_bytes) == (161, 644)
    assert summary.dataset_samples == 145
    assert summary.workers_work_together is None
    assert [*process.evaluated.nonzero()[0]] == [5, 10, 15]
    assert (process.data_wait_s[1:] >= 0).all()
    assert 0 < process.data_wait_s[1:].sum() < process.step_end_s[-1] - process.step_end_s[0]
    next_s = np.array(of_script["ends_s"]) + 0.001  # the script looks at its clock after a step
    assert (process.step_end_s <= next_s).all()
    assert (process.step_end_s[1:] >= next_s[:-1]).all()


@pytest.mark.parametrize(
    ("line", "accumulation", "evaluated", "batches", "data"),
    [
        ([SCRIPTS / "hugging_face.py"], 2, [6], {8}, 48),
        (["-m", "lightning_fit"], 1, [12], {4, 2}, 46),
    ],
    ids=["transformers", "lightning"],
)
def test_trainers_are_counted_without_their_evaluations(
    tmp_path, line, accumulation, evaluated, batches, data
):
    ((result,), _) = run(tmp_path, *line, PYTHONPATH=path_with_hook(tmp_path, SCRIPTS))
    (process,) = processes(tmp_path).values()
    summary = summarise([process])
    assert summary.steps == result["steps"]
    assert summary.samples_seen == result["samples"]
    assert (summary.gradient_accumulation, summary.dataset_samples) == (accumulation, data)
    # Also where the trainer fetches a batch ahead.
    assert set(process.samples_per_step) == batches
    assert process.problems == ()
    assert [*process.evaluated.nonzero()[0]] == evaluated


def path_with_hook(folder: Path, *more: Path) -> str:
    before = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, more))}
    return instrumented_environment(before, folder / "steps")["PYTHONPATH"]


#: Samples of a stream, of which a batch is one packed row, beside those of a second loader.
PACKED = """
import os, torch
from torch.utils.data import DataLoader, IterableDataset

class Stream(IterableDataset):
    def __iter__(self):
        return iter(torch.zeros(96, 3))

packed = DataLoader(Stream(), batch_size=8, collate_fn=lambda rows: torch.cat(rows)[None])
loaders = [packed, DataLoader(torch.zeros(96, 3), batch_size=8)]
if os.fork():
    loaders.pop()
    os.wait()
weights = torch.nn.Parameter(torch.ones(3))
optimizer = torch.optim.SGD([weights], lr=0.1)
for batches in zip(*loaders):
    sum((batch.reshape(-1, 3) @ weights).sum() for batch in batches).backward()
    optimizer.step()
"""


def test_a_packed_row_counts_its_samples_and_two_loaders_have_no_batch(tmp_path):
    run(tmp_path, "-c", PACKED)
    both, packed = sorted(processes(tmp_path).values(), key=lambda process: process.step_end_s[-1])
    for process, batches in ((packed, {8: 11}), (both, {})):
        assert (process.steps, process.problems) == (12, ())
        assert summarise([process]).steps_by_samples == batches


def test_a_forked_process_has_a_recording_of_its_own(tmp_path):
    results, _ = run(tmp_path, SCRIPTS / "forks.py")
    expected = {result["pid"]: result["steps"] for result in results}
    known = processes(tmp_path)
    assert {pid: process.steps for pid, process in known.items()} == expected
    assert sorted(expected.values()) == [5, 7]
    assert all(process.is_ended for process in known.values())
    for path in (tmp_path / "steps").iterdir():
        assert path.stat().st_mode & 0o777 == 0o600


def test_the_users_sitecustomize_and_path_are_as_without_the_hook(tmp_path):
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("import builtins\nbuiltins.MARK = 'mine'\nVALUE = 5\n")
    code = "import sitecustomize, sys; print(MARK, sitecustomize.VALUE, sys.path)"
    plain = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": str(own)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    _, hooked = run(tmp_path, "-c", code, PYTHONPATH=path_with_hook(tmp_path, own))
    assert hooked == plain.stdout
    assert "mine 5" in hooked
    (own / "sitecustomize.py").write_text("raise ValueError('broken')\n")
    _, output = run(tmp_path, "-c", "print('ran')", PYTHONPATH=path_with_hook(tmp_path, own))
    assert "ran" in output
    assert "ValueError: broken" in output


def test_steps_are_read_while_a_script_runs_and_a_kill_loses_half_a_second_at_most(tmp_path):
    line = [sys.executable, SCRIPTS / "plain.py", "--epochs", "1000"]
    folder, counts = StepsFolder(tmp_path / "steps"), [0]
    with subprocess.Popen(line, env=environment(tmp_path), stdout=subprocess.PIPE) as process:
        for text in process.stdout:
            counts.append(sum(known.steps for known in folder.read()))
            if text.startswith(b"step 80 "):
                break
        process.send_signal(signal.SIGKILL)
        shown = 80 + process.stdout.read().count(b"step ")
    (recorded,) = processes(tmp_path).values()
    assert shown - 0.6 / 0.02 <= recorded.steps <= shown + 1
    assert counts == sorted(counts)
    assert len(set(counts)) > 2
    assert not recorded.is_ended


def test_the_hook_is_valid_for_python_3_9_and_imports_only_the_standard_library():
    hook = Path(sys.modules[instrumented_environment.__module__].__file__).parent / "hook"
    for path in hook.rglob("*.py"):
        tree = ast.parse(path.read_text(), feature_version=(3, 9))
        names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import)
                 for alias in node.names}  # fmt: skip
        names |= {
            node.module
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and not node.level
        }
        assert {name.partition(".")[0] for name in names} <= sys.stdlib_module_names


def test_a_part_of_the_hook_that_fails_says_so_and_the_rest_goes_on(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(
        "from importlib.machinery import SourceFileLoader as Loader\n"
        "execute = Loader.exec_module\n"
        "def exec_module(self, module):\n"
        "    execute(self, module)\n"
        "    if module.__name__ == 'torch.utils.data.dataloader':\n"
        "        del module._BaseDataLoaderIter._next_index\n"
        "Loader.exec_module = exec_module\n"
    )
    code = (
        "import torch; model = torch.nn.Linear(2, 1)\n"
        "optimizer = torch.optim.SGD(model.parameters())\n"
        "for _ in range(3):\n    model(torch.ones(1, 2)).sum().backward(); optimizer.step()\n"
        "print('RESULT {\"steps\": 3}')\n"
    )
    ((result,), output) = run(tmp_path, "-c", code, PYTHONPATH=path_with_hook(tmp_path, tmp_path))
    assert "Traceback" not in output
    (process,) = processes(tmp_path).values()
    assert process.steps == result["steps"]
    assert [problem.split(":")[0] for problem in process.problems] == ["loaders.count_samples"]
