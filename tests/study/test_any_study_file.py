"""Any content is a study or an error of one line; any valid study comes back from its file."""

import json
from pathlib import Path

import yaml
from hypothesis import given
from hypothesis import strategies as st
from test_study_file import VALID, is_one_line

from wattlaw.common.errors import BadInput
from wattlaw.study.model import Study
from wattlaw.study.plan import read_study

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
