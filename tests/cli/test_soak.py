"""What the soak counts as a failure, tells and replays; ``.ci/run`` runs the soak itself."""

import os

import pytest

from conftest import python
from soak.judge import of_output
from soak.outcome import Outcome, table
from soak.sandbox import REPOSITORY


def test_a_failure_is_counted_told_and_replayed(tmp_path):
    told = Outcome("fuzz")
    told.tried["study files"] += 2
    for seed in ("7:1", "7:2"):
        told.failed("study files", "a cause", "a detail", seed)
    told.write(tmp_path)
    assert Outcome.read(tmp_path / "fuzz.json") == told
    assert [(one.count, one.replay) for one in told.failures] == [(2, "fuzz:7:1")]
    assert "replay fuzz:7:1" in table([told])
    path = os.pathsep.join(str(REPOSITORY / name) for name in ("tests", "tests/support", "src"))
    done = python("-m", "soak", "replay", "fuzz:7:1", env=os.environ | {"PYTHONPATH": path})
    assert done.returncode == 0, done.stdout + done.stderr
    assert "does not fail" in done.stdout


@pytest.mark.parametrize(
    ("code", "out", "err", "count"),
    [
        (0, "fine\n", "", 0),
        (2, "", "wattlaw: s.yaml: is empty\n", 0),
        (2, "", "is empty\n", 1),
        (70, "", "wattlaw: a fault of ours\n", 1),
        (1, "", "Traceback (most recent call last):\n  ...\nKeyError: 'x'\n", 1),
        (0, "\x1b[31mred\n", "", 1),
        (0, "abc\u202edef\n", "", 1),
        (2, "", "wattlaw: " + "x" * 5000, 1),
    ],
)
def test_faults_of_an_output_are_listed(code, out, err, count):
    assert len(of_output(code, out, err)) == count
