"""Any content is a study or an error of one line; any valid study comes back from its file."""

import json
from pathlib import Path

import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from test_study_file import VALID, is_one_line

from wattlaw.common.errors import BadInput
from wattlaw.study import document
from wattlaw.study.model import Study
from wattlaw.study.plan import read_study


@given(st.one_of(st.text(), st.binary()))
def test_any_content_is_a_study_or_one_line(tmp_path_factory, content):
    read_or_one_line(tmp_path_factory, content.encode() if isinstance(content, str) else content)


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


counts = st.integers(1, 10_000_000)
fractions = st.floats(0, 1, exclude_min=True)
positives = st.floats(0, exclude_min=True, allow_infinity=False) | counts
whole = st.integers(-(2**63) + 1, 2**63 - 1)
names = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", fullmatch=True)
options = st.recursive(
    st.none()
    | st.booleans()
    | whole
    | st.text()
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


words = st.text(st.characters(exclude_characters="\0{}", exclude_categories=["Cs"])) | (
    st.sampled_from(["train.py", "--batch={local_batch}", "{{}}", "{gpus} {seed}"])
)


def few(values: st.SearchStrategy[object]) -> st.SearchStrategy[list[object]]:
    return st.lists(values, min_size=1, max_size=3)


limits = {
    "power_limit_w": few(st.none() | positives),
    "clock_limit_mhz": few(st.none() | positives),
    "precision": few(st.sampled_from(["fp32", "tf32", "bf16", "fp16"])),
    "dataset_fraction": few(fractions | st.sampled_from(["gpus/3000", "1/gpus"])),
    "workloads": st.none(),
    "epochs": st.none() | st.integers(2, 100_000),
}
grids = st.fixed_dictionaries(
    {"gpus": few(st.integers(1, 3000)), "local_batch": few(st.integers(1, 3000))}, optional=limits
) | st.fixed_dictionaries(
    {"gpus": few(st.sampled_from([1, 2, 3, 4, 6])), "global_batch": few(st.just(12 * 7))},
    optional=limits,
)
studies = st.fixed_dictionaries(
    {
        "name": names,
        "workloads": few(
            st.fixed_dictionaries(
                {"name": names},
                optional={"options": st.dictionaries(st.text(), options, max_size=3)},
            )
            | st.fixed_dictionaries({"command": few(words)}, optional={"name": names})
        ),
        "sweeps": few(grids),
    },
    optional={
        "repeats": st.integers(1, 10_000),
        "order": st.sampled_from(["random", "as_written"]),
        "order_seed": st.integers(0, 2**63 - 1),
        "measure": st.fixed_dictionaries(
            {"epochs": st.integers(2, 100_000)},
            optional={
                "warmup_epochs": st.integers(0, 1),
                "sample_hz": st.floats(0, 1000, exclude_min=True),
                "evaluate": st.booleans(),
                "assume_cpu_w": st.none() | positives,
            },
        ),
        "train": st.fixed_dictionaries(
            {},
            optional={
                "compile": st.booleans(),
                "gradient_accumulation": st.integers(1, 100_000),
                "bucket_mb": st.floats(0, 100_000, exclude_min=True),
                "loader_workers": st.none() | st.integers(0, 256),
                "checkpoint_every": st.none() | counts,
                "seed": st.integers(0, 2**31),
            },
        ),
        "launch": st.fixed_dictionaries(
            {},
            optional={
                "kind": names,
                "hardware": st.none() | st.text(max_size=200),
                "gpus_per_node": st.none() | counts,
                "threads_per_worker": st.none() | counts,
                "max_parallel": counts,
                "timeout_s": st.none() | positives,
            },
        ),
    },
)


class Quoting(yaml.SafeDumper):
    """Quotes what the reader takes for a number, such as a workload called 0E0, as users must."""

    yaml_implicit_resolvers = document._Loader.yaml_implicit_resolvers


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(studies)
@example(
    {"name": "0", "workloads": [{"name": "0E0"}], "sweeps": [{"gpus": [1], "global_batch": [84]}]}
)
def test_every_valid_study_comes_back_from_its_file(tmp_path_factory, data):
    study = Study.model_validate_json(json.dumps(data))
    path: Path = tmp_path_factory.mktemp("valid") / "study.yaml"
    path.write_text(yaml.dump(data, Dumper=Quoting), encoding="utf-8")
    assert read_study(path) == study
    path.write_text(yaml.dump(study.model_dump(mode="json"), Dumper=Quoting), encoding="utf-8")
    assert read_study(path) == study
