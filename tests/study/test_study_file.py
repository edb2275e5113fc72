"""Any content of a study file is a study or an error of one line, never a traceback."""

import json
import re

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from wattlaw.cli.main import main
from wattlaw.common.errors import BadInput
from wattlaw.study.model import Study
from wattlaw.study.plan import read_study

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
CAP, NET = "power_limit_w: [null]", "{name: digits-cnn, options: {}}"

# What to replace in the valid file, by what, and what the error must say.
CHANGES = {
    "a count of zero": ("gpus: [1, 2], l", "gpus: [0], l", "given 0"),
    "both batches": ("local_batch: [32]", "local_batch: [32], global_batch: [64]", "both"),
    "neither batch": ("local_batch: [32], ", "", "neither"),
    "a batch not divided": ("global_batch: [64]", "global_batch: [63]", "63 with 2 gpus"),
    "a fraction above one": ("power_limit_w: [null]", "dataset_fraction: [1.5]", "<= 1"),
    "an unknown precision": ("power_limit_w: [null]", "precision: [fp8]", "fp32"),
    "an unknown train key": ("repeats: 3", "train: {accumulate: 2}", "train.accumulate: unknown"),
    "a seed too large": ("repeats: 3", "train: {seed: 4294967296}", "<= 2^31"),
    "a command in a text": (NET, "{command: python train.py}",
                            'workloads[0].command: given "python train.py"; allowed: a list of'),
    "a word of code in braces": (NET, "{command: [python, '{gpus.real}']}", "{{ is a brace"),
    "a command with options": (NET, "{command: [python], options: {lr: 1}}", "given command and"),
    "neither name nor command": (NET, "{command: null}", "workloads[0].name: given nothing"),
    "an unknown key": (
        "repeats", "repeat", "repeat: unknown key (did you mean 'repeats'?); allowed: name",
    ),
    "a key whose lack follows from an unknown one": (
        "workloads", "workload", "workload: unknown key (did you mean 'workloads'?)",
    ),
    "no name": ("name: digits-scaling\n", "", "given nothing"),
    "a name that is a path": ("name: digits-scaling", "name: ../../etc", "name"),
    "a date among options": ("options: {}", "options: {lr: 2026-01-01}", "quote a date"),
    "an unknown order": ("order: random", "order: randon", "mean 'random'?); allowed: random or"),
    "only warm-up": ("warmup_epochs: 1", "warmup_epochs: 3", "fewer warm-up epochs"),
    "null for a section": ("launch: {kind: local", "launch: null #", "launch: given null"),
    "a number without end": ("repeats: 3", "repeats: 0x" + "f" * 5000, "is not a valid int"),
    "a thirteenth month": ("order: random", "order: 2026-13-45", "is not a valid timestamp"),
    "a key of control characters": ("order: random", '"a\\n\\e[31m": 1', "a??[31m: unknown key"),
    "a key twice": ("repeats: 3", "repeats: 3\nrepeats: 4", "given twice"),
    "a key that is a mapping": ("repeats: 3", "? {a: b}\n: 3", "a key is not text"),
    "an object": ("repeats: 3", "repeats: !!python/object/apply:os.getcwd []", "not valid YAML"),
}  # fmt: skip


def of_tens(first: bytes, line: bytes) -> bytes:
    """Return lines of which each has ten aliases of the one before."""
    letters = range(ord("b"), ord("l"))
    aliases = {letter: b",".join([b"*%c" % (letter - 1)] * 10) for letter in letters}
    return first + b"".join(line % (letter, letter, aliases[letter]) for letter in letters)


FILES = {
    "empty": (b"", "empty"),
    "UTF-16": ("name: x".encode("utf-16"), "UTF-8"),
    "bytes": (bytes(range(256)), "UTF-8"),
    "an alias of itself": (b"a: &x [*x]\n", "contains itself"),
    "a bomb of aliases": (of_tens(b"a: &a [1,1]\n", b"%c: &%c [%s]\n"), "more than"),
    "a bomb of merges": (of_tens(b"a: &a {x: 1}\n", b"%c: &%c {<<: [%s]}\n"), "more than"),
    "deep by a chain of aliases": (
        b"a0: &a0 []\n"
        + b"".join(b"a%d: &a%d %s*a%d%s\n" % (n, n, b"[" * 40, n - 1, b"]" * 40)
                   for n in range(1, 60)),
        "nested",
    ),
    "very long": (b"# " + b"x" * 1_100_000, "larger than"),
}  # fmt: skip


WRONG = {
    name: (VALID.replace(old, new, 1).encode(), expected)
    for name, (old, new, expected) in CHANGES.items()
}
WRONG |= {f"a file of {name}": file for name, file in FILES.items()}


def is_one_line(text: str) -> bool:
    return text.isprintable() and "Traceback" not in text


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_study_file_gives_one_line_with_file_key_and_allowed_values(name, tmp_path, capsys):
    content, expected = WRONG[name]
    path = tmp_path / "study.yaml"
    path.write_bytes(content)
    assert main(["check", str(path)]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    (line,) = shown.err.splitlines()
    assert is_one_line(line)
    assert line.startswith(f"wattlaw: {path}")
    assert expected in line
    assert len(line) < len(str(path)) + 400
    assert name not in CHANGES or re.match(r":[1-9][0-9]*: ", line.removeprefix(f"wattlaw: {path}"))


BLOCK = """\
name: x
workloads:
  - name: digits-cnn
  - command:
      - python
      - train.py
      - --batch={local_batch}
    name: own
sweeps:
  - gpus: [1, 2]
    local_batch: [8]
    workloads:
      - digits-cnn
      - own
    dataset_fraction:
      - 1/gpus
      - gpus/2
    epochs: 4
measure: {warmup_epochs: 2}
"""


@pytest.mark.parametrize(
    ("line", "old", "new", "expected"),
    [
        (7, "{local_batch}", "{lokal_batch}", "workloads[1].command[2]: given '--batch={lokal_"),
        (14, "- own", "- owl", 'sweeps[0].workloads[1]: given "owl"; allowed: digits-cnn, own'),
        (17, "gpus/2", "2/gpus", "sweeps[0].dataset_fraction[1]: given 2/gpus, with 1 gpus more"),
        (18, "epochs: 4", "epochs: 2", "sweeps[0].epochs: given 2 with measure.warmup_epochs"),
        (4, "      - own\n", "", "workloads[1]: no sweep includes own; allowed: one or more for"),
    ],
)
def test_contradicting_parts_give_the_line_to_change(line, old, new, expected, tmp_path):
    path = tmp_path / "study.yaml"
    path.write_text(BLOCK)
    read_study(path)
    path.write_text(BLOCK.replace(old, new, 1))
    with pytest.raises(BadInput) as error:
        read_study(path)
    assert str(error.value).startswith(f"{path}:{line}: {expected}")


def test_the_first_of_several_errors_is_printed_and_others_counted(tmp_path):
    path = tmp_path / "study.yaml"
    path.write_text(VALID.replace("repeats: 3", "repeats: 0").replace("random", "sorted"))
    with pytest.raises(BadInput, match=r"repeats: given 0; .* \(and 1 more\)$"):
        read_study(path)


STEPS = {"measure": {"steps": 5}}


def of_sweep(batch: str = "global_batch", **sweep: object) -> dict[str, object]:
    return {"sweeps": [{"gpus": [1], batch: [64], **sweep}]}


def of_workload(**workload: object) -> dict[str, object]:
    return {"workloads": [workload if "command" in workload else {"name": "digits-cnn"} | workload]}


def of_slurm(**slurm: object) -> dict[str, object]:
    return {"launch": {"kind": "slurm", "gpus_per_node": 1, "slurm": slurm}}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        # steps, or epochs
        ({"measure": {"steps": 100, "seconds": 60}}, ": measure: "),
        ({"measure": {"steps": 100, "warmup_epochs": 1}}, ": measure.warmup_epochs: "),
        ({"measure": {"epochs": 3, "warmup_steps": 5}}, ": measure.warmup_steps: "),
        ({"measure": {"epochs": None}}, ": measure: "),
        ({"measure": {"steps": 9}} | of_sweep(epochs=4), ": sweeps[0].epochs: "),
        # steps that nobody counts
        (of_workload(command=["true"], instrument="none") | STEPS, "workloads[0].instrument"),
        (
            of_workload(command=["true"], progress={"pattern": r"e (?P<epoch>\d+)"}) | STEPS,
            "workloads[0].progress.pattern",
        ),
        # nodes and emulation
        (of_sweep("local_batch", emulate={"gpus": [4]}), "sweeps[0].emulate: "),
        (of_sweep(gpus=[4], emulate={"gpus": [4]}), "emulate.gpus[0]: "),
        (of_sweep(emulate={"gpus": [7]}), "sweeps[0]: "),
        (of_sweep(emulate={"gpus": []}), "emulate.gpus: "),
        (of_sweep("local_batch", gpus=[2], nodes=[4]), "nodes"),
        # keys of a workload
        (of_workload(instrument="none"), "workloads[0].instrument: "),
        (of_workload(launch_with="mpirun"), "workloads[0].launch_with: "),
        (of_workload(progress={"pattern": "(?P<step>1)"}), "workloads[0].progress: "),
        (of_workload(command=["x"], progress={"pattern": "(?P<step>1"}), "progress.pattern: "),
        (of_workload(command=["x"], progress={"pattern": "(?P<loss>1)"}), "progress.pattern: "),
        (of_workload(command=["x"], dataset_samples=0), "workloads[0].dataset_samples: "),
        # Slurm
        (of_slurm(options={"nodes": 3}), "options.nodes: cannot be set here; allowed: account"),
        (of_slurm(options={"time": 5}), "options.time: cannot be set here (set launch.slurm.time"),
        (of_slurm(time="\u0660\u0662:\u0660\u0660:\u0660\u0660"), "launch.slurm.time"),
        (of_slurm(setup=["echo \x1b[31m"]), "launch.slurm.setup[0]: given"),
        (of_slurm(python="python\nid"), "launch.slurm.python: given"),
        (of_slurm(time="00:02:00"), "time: given 00:02:00, 120 s; allowed: at least 180 s"),
        (of_slurm(gres="gpu:a100:4"), '"gpu:a100:4"; allowed: the generic resource of each worker'),
        ({"workloads": [{"name": "no-such-model"}]}, "'no-such-model'; allowed: "),
        ({"workloads": [{"name": "digits-cnn", "options": {"rate": 1}}]}, "options.rate: unknown"),
        ({"workloads": [{"name": "digits-cnn", "options": {"lr": True}}]}, "a number > 0"),
        ({"workloads": [{"name": "digits-cnn", "options": {"a\nb": 1}}]}, "unknown key"),
        (
            {"workloads": [{"command": ["no-such-program", "train.py"]}]},
            "workloads[0].command: given 'no-such-program'; allowed: an installed program",
        ),
        (
            {"launch": {"kind": "telepathy"}},
            "launch.kind: unknown launcher 'telepathy'; allowed: local",
        ),
        (
            {"sweeps": [{"gpus": [*range(1, 300)], "local_batch": [*range(1, 300)]}], "repeats": 3},
            "given 268,203 runs; allowed: at most 20,000",
        ),
    ],
)
def test_an_unrunnable_study_is_rejected_before_it_starts(change, expected, write_study, capsys):
    path = write_study(**change)
    assert main(["check", str(path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert re.match(rf"wattlaw: {re.escape(str(path))}:(\d+:)? ", line)
    assert expected in line


def test_the_example_of_the_design_is_valid_and_exponents_are_numbers(tmp_path):
    path = tmp_path / "study.yaml"
    path.write_text(VALID.replace("options: {}", "options: {lr: 1e-3}"))
    study = read_study(path)
    assert study.workloads[0].options == {"lr": 0.001}
    assert study.launch.gpus_per_node == 4


def test_settings_shared_by_anchors_and_merges_are_read(tmp_path):
    """A merge key is resolved however deep its anchor lies, and what stands beside it wins."""
    path = tmp_path / "study.yaml"
    path.write_text(
        "name: x\n"
        "workloads: [{name: digits-cnn, options: {o: &base {lr: 1, width: 2}, p: [&more\n"
        "  {<<: *base, lr: 3}]}}, {name: other, options: {<<: *more, width: 4}}]\n"
        "sweeps: [{gpus: &n [1, 2], local_batch: [8]}, {gpus: [1], local_batch: *n}]\n"
    )
    study = read_study(path)
    assert study.workloads[0].options["p"] == [{"lr": 3, "width": 2}]
    assert study.workloads[1].options == {"lr": 3, "width": 4}
    assert study.sweeps[1].local_batch == (1, 2)


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
places = st.sampled_from(
    [("name",), ("workloads",), ("workloads", 0), ("workloads", 0, "name"), ("sweeps",),
     ("workloads", 0, "options"), ("sweeps", 0), ("sweeps", 0, "gpus"), ("repeats",),
     ("sweeps", 0, "local_batch"), ("sweeps", 0, "gpus", 0), ("order",), ("measure",),
     ("measure", "epochs"), ("measure", "assume_cpu_w"), ("launch",), ("launch", "kind"),
     ("launch", "max_parallel"), ("launch", "hardware"), ("surprise",), ("train",),
     ("train", "bucket_mb"), ("train", "seed"), ("workloads", 0, "command"),
     ("workloads", 1, "command", 1), ("sweeps", 0, "workloads"), ("sweeps", 0, "epochs"),
     ("sweeps", 0, "dataset_fraction"), ("sweeps", 0, "dataset_fraction", 0),
     ("sweeps", 0, "precision")]
)  # fmt: skip


@given(places, plain)
def test_a_valid_study_with_any_value_in_any_place_is_a_study_or_one_line(
    tmp_path_factory, path, value
):
    data = yaml.safe_load(VALID) | {"train": {}}
    data["workloads"].append({"command": ["python", "train.py"]})
    data["sweeps"][0]["dataset_fraction"] = ["gpus/2"]
    place = data
    for part in path[:-1]:
        place = place[part]
    place[path[-1]] = value
    path = tmp_path_factory.mktemp("any") / "study.yaml"
    path.write_text(yaml.safe_dump(data, allow_unicode=True), encoding="utf-8")
    try:
        study = read_study(path)
    except BadInput as error:
        assert is_one_line(str(error)), repr(str(error))
        assert str(path) in str(error)
    else:
        assert Study.model_validate_json(json.dumps(study.model_dump(mode="json"))) == study
    path.unlink()
    path.parent.rmdir()
