"""Study files that are wrong, in many ways: one line each, never a traceback."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from conftest import study_of
from wattlaw.cli.main import main
from wattlaw.errors import BadInput
from wattlaw.study.model import Study
from wattlaw.study.plan import expand
from wattlaw.study.reader import read_study

VALID = """\
name: digits-scaling
workloads: [{name: digits-cnn, options: {}}]
sweeps:
  - {gpus: [1, 2], local_batch: [32], power_limit_w: [null]}
  - {gpus: [1, 2], global_batch: [64]}
repeats: 3
order: random
measure: {epochs: 3, warmup_epochs: 1, sample_hz: 10, evaluate: true}
launch: {kind: local, gpus_per_node: 4, timeout_s: 600}
"""

# What to replace in the valid file, by what, and what the error must say.
CHANGES = {
    "text for a count": ("gpus: [1, 2], l", 'gpus: ["1"], l', "gpus[0]"),
    "a word for a count": ("gpus: [1, 2], l", "gpus: [two], l", "whole numbers >= 1"),
    "a count of zero": ("gpus: [1, 2], l", "gpus: [0], l", "given 0"),
    "a negative count": ("gpus: [1, 2], l", "gpus: [-1], l", "given -1"),
    "a broken count": ("gpus: [1, 2], l", "gpus: [1.5], l", "given 1.5"),
    "true as a count": ("gpus: [1, 2], l", "gpus: [true], l", "given true"),
    "null as a count": ("gpus: [1, 2], l", "gpus: [null], l", "given null"),
    "a count without a list": ("gpus: [1, 2], l", "gpus: 2, l", "a list of whole numbers"),
    "no counts": ("gpus: [1, 2], l", "gpus: [], l", "sweeps[0].gpus"),
    "counts missing": ("gpus: [1, 2], l", "l", "given nothing"),
    "a huge count": ("gpus: [1, 2], l", "gpus: [99999999999], l", "gpus[0]"),
    "both batches": ("local_batch: [32]", "local_batch: [32], global_batch: [64]", "both"),
    "neither batch": ("local_batch: [32], ", "", "neither"),
    "an empty batch": ("local_batch: [32]", "local_batch: []", "neither"),
    "a batch of zero": ("local_batch: [32]", "local_batch: [0]", "local_batch[0]"),
    "a batch not divided": ("global_batch: [64]", "global_batch: [63]", "63 with 2 gpus"),
    "a cap of zero": ("power_limit_w: [null]", "power_limit_w: [0]", "power_limit_w[0]"),
    "an infinite cap": ("power_limit_w: [null]", "power_limit_w: [.inf]", "finite"),
    "a cap that is no number": ("power_limit_w: [null]", "power_limit_w: [.nan]", "finite"),
    "a cap in words": ("power_limit_w: [null]", "power_limit_w: [200 W]", "or null"),
    "a fraction above one": ("power_limit_w: [null]", "dataset_fraction: [1.5]", "<= 1"),
    "a fraction of zero": ("power_limit_w: [null]", "dataset_fraction: [0]", "<= 1"),
    "an unknown precision": ("power_limit_w: [null]", "precision: [fp8]", "fp32"),
    "an unknown sweep key": ("power_limit_w", "power_cap", "unknown key"),
    "an unknown key": ("repeats", "repeat", "unknown key; allowed: name"),
    "an unknown measure key": ("sample_hz", "hz", "measure.hz"),
    "an unknown launch key": ("timeout_s", "timeout", "launch.timeout"),
    "no name": ("name: digits-scaling\n", "", "given nothing"),
    "a name that is a path": ("name: digits-scaling", "name: ../../etc", "name"),
    "a name with a space": ("name: digits-scaling", "name: a b", "name"),
    "a name of markup": ("name: digits-scaling", "name: <script>", "name"),
    "a name that is a number": ("name: digits-scaling", "name: 3", "given 3"),
    "an empty name": ("name: digits-scaling", 'name: ""', "name"),
    "no workloads": ("[{name: digits-cnn, options: {}}]", "[]", "workloads"),
    "a workload in a word": ("[{name: digits-cnn, options: {}}]", "digits-cnn", "workloads"),
    "options in a list": ("options: {}", "options: [lr]", "options"),
    "a date among options": ("options: {}", "options: {lr: 2026-01-01}", "quote a date"),
    "no repeats": ("repeats: 3", "repeats: 0", "repeats: given 0"),
    "repeats in words": ("repeats: 3", "repeats: three", "whole number >= 1"),
    "an unknown order": ("order: random", "order: sorted", "random or as_written"),
    "no epochs": ("epochs: 3", "epochs: 0", "measure.epochs"),
    "only warm-up": ("warmup_epochs: 1", "warmup_epochs: 3", "fewer warm-up epochs"),
    "negative warm-up": ("warmup_epochs: 1", "warmup_epochs: -1", "warmup_epochs"),
    "no sampling": ("sample_hz: 10", "sample_hz: 0", "sample_hz"),
    "too much sampling": ("sample_hz: 10", "sample_hz: 1e9", "sample_hz"),
    "a word for a truth": ("evaluate: true", "evaluate: maybe", "true or false"),
    "negative watts": ("evaluate: true", "assume_cpu_w: -15", "assume_cpu_w"),
    "a negative time limit": ("timeout_s: 600", "timeout_s: -1", "timeout_s"),
    "a launcher in a list": ("kind: local", "kind: [local]", "launch.kind"),
    "a key twice": ("repeats: 3", "repeats: 3\nrepeats: 4", "given twice"),
    "a key that is no text": ("repeats: 3", "repeats: 3\n1: 2", "keys that are text"),
    "a key that is a list": ("repeats: 3", "? [a, b]\n: 3", "not valid YAML"),
    "brackets not closed": ("gpus: [1, 2], l", "gpus: [1, 2, l", "not valid YAML"),
    "a tab": ("repeats: 3", "repeats:\n\t- 3", "not valid YAML"),
    "an object": ("repeats: 3", "repeats: !!python/object/apply:os.getcwd []", "not valid YAML"),
    "an unknown alias": ("repeats: 3", "repeats: *missing", "not valid YAML"),
    "too many runs": ("repeats: 3", "repeats: 10000\norder_seed: 1", None),
}
FILES = {
    "empty": (b"", "empty"),
    "only a comment": (b"# nothing\n", "empty"),
    "a list": (b"- 1\n", "a mapping"),
    "a word": (b"hello\n", "a mapping"),
    "bytes": (bytes(range(256)), "UTF-8"),
    "zeros": (b"\0" * 100, "not valid YAML"),
    "two documents": (b"a: 1\n---\nb: 2\n", "not valid YAML"),
    "an alias of itself": (b"a: &x [*x]\n", "contains itself"),
    "a bomb of aliases": (
        b"a: &a [1,1,1,1,1,1,1,1,1,1]\n"
        + b"".join(b"%c: &%c [%s]\n" % (c, c, b",".join([b"*%c" % (c - 1)] * 10))
                   for c in range(ord("b"), ord("l"))),
        "more than",
    ),
    "rather deep": (b"a: " + b"[" * 300 + b"]" * 300, "nested"),
    "very deep": (b"[" * 20_000, "nested"),
    "very long": (b"# " + b"x" * 1_100_000, "larger than"),
}  # fmt: skip


def changed(change: tuple[str, str, str | None]) -> bytes:
    old, new, _ = change
    assert old in VALID
    return VALID.replace(old, new, 1).encode()


WRONG = {name: (changed(change), change[2]) for name, change in CHANGES.items()} | FILES
del WRONG["too many runs"]


def is_one_line(text: str) -> bool:
    return text.isprintable() and "Traceback" not in text


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_study_file_is_told_in_one_line_that_names_file_key_and_what_is_allowed(
    name, tmp_path, capsys
):
    content, expected = WRONG[name]
    path = tmp_path / "study.yaml"
    path.write_bytes(content)
    assert main(["check", str(path)]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    (line,) = shown.err.splitlines()
    assert is_one_line(line)
    assert str(path) in line
    assert expected in line


def test_there_are_at_least_fifty_wrong_files():
    assert len(WRONG) >= 50


@pytest.mark.parametrize("name", ["text for a count", "a bomb of aliases", "bytes", "very deep"])
def test_the_real_command_says_the_same(name, tmp_path):
    path = tmp_path / "study.yaml"
    path.write_bytes(WRONG[name][0])
    line = [sys.executable, "-m", "wattlaw", "run", str(path), "--store", str(tmp_path / "s")]
    found = subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)
    assert found.returncode == 2
    assert len(found.stderr.splitlines()) == 1
    assert "Traceback" not in found.stderr
    assert not (tmp_path / "s").exists()


def test_more_runs_than_a_study_may_have_are_refused(tmp_path):
    path = tmp_path / "study.yaml"
    counts = list(range(1, 300))
    path.write_text(
        yaml.safe_dump(study_of(sweeps=[{"gpus": counts, "local_batch": counts}], repeats=100))
    )
    with pytest.raises(BadInput, match="at most 200,000"):
        expand(read_study(path))


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"workloads": [{"name": "no-such-model"}]}, "allowed: broken, digits-cnn"),
        ({"workloads": [{"name": "digits-cnn", "options": {"rate": 1}}]}, "unknown key"),
        ({"workloads": [{"name": "digits-cnn", "options": {"lr": "fast"}}]}, "a number > 0"),
        ({"workloads": [{"name": "digits-cnn", "options": {"lr": -1}}]}, "a number > 0"),
        ({"launch": {"kind": "telepathy"}}, "allowed: local"),
    ],
)
def test_unknown_workloads_options_and_launchers_are_told_before_anything_runs(
    change, expected, tmp_path, write_study
):
    from conftest import wattlaw

    found = wattlaw("check", write_study(**change))
    assert found.returncode == 2
    assert len(found.stderr.splitlines()) == 1
    assert expected in found.stderr


def test_a_missing_file_and_a_folder_are_told(tmp_path, capsys):
    for path in (tmp_path / "missing.yaml", tmp_path):
        assert main(["check", str(path)]) == 2
        assert str(path) in capsys.readouterr().err


def test_the_example_of_the_design_is_valid_and_exponents_are_numbers(tmp_path):
    path = tmp_path / "study.yaml"
    path.write_text(VALID.replace("options: {}", "options: {lr: 1e-3}"))
    study = read_study(path)
    assert study.workloads[0].options == {"lr": 0.001}
    assert study.launch.gpus_per_node == 4


@given(st.one_of(st.text(), st.binary()))
def test_any_content_is_a_study_or_one_line(tmp_path_factory, content):
    read_or_one_line(tmp_path_factory, content.encode() if isinstance(content, str) else content)


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
paths = st.sampled_from(
    [("name",), ("workloads",), ("workloads", 0), ("workloads", 0, "name"), ("sweeps",),
     ("workloads", 0, "options"), ("sweeps", 0), ("sweeps", 0, "gpus"), ("repeats",),
     ("sweeps", 0, "local_batch"), ("sweeps", 0, "gpus", 0), ("order",), ("measure",),
     ("measure", "epochs"), ("measure", "assume_cpu_w"), ("launch",), ("launch", "kind"),
     ("launch", "max_parallel"), ("launch", "hardware"), ("surprise",)]
)  # fmt: skip


@given(paths, plain)
def test_a_valid_study_with_any_value_in_any_place_is_a_study_or_one_line(
    tmp_path_factory, path, value
):
    data = yaml.safe_load(VALID)
    place = data
    for part in path[:-1]:
        place = place[part]
    place[path[-1]] = value
    read_or_one_line(tmp_path_factory, yaml.safe_dump(data, allow_unicode=True).encode())


def read_or_one_line(tmp_path_factory, content: bytes) -> None:
    path: Path = tmp_path_factory.mktemp("any") / "study.yaml"
    path.write_bytes(content)
    try:
        study = read_study(path)
    except BadInput as error:
        assert is_one_line(str(error)), repr(str(error))
        assert str(path) in str(error)
    else:
        assert Study.model_validate_json(json.dumps(study.model_dump(mode="json"))) == study
    path.unlink()
    path.parent.rmdir()
