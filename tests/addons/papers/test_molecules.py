"""SchNet and DimeNet as workloads: made molecules, QM9's file, and what training finds."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch

from wattlaw.common.errors import BadInput
from wattlaw_papers.workloads.molecules import DIMENET, SCHNET, DimeNetOptions, SchNetOptions, qm9
from wattlaw_papers.workloads.molecules.regression import DimeNetOnQm9, SchNetOnQm9
from wattlaw_papers.workloads.molecules.synthetic_molecules import make_data


def schnet(**options) -> SchNetOnQm9:
    sizes = {"filters": 16, "interactions": 2, "gaussians": 8, "cutoff": 4.0}
    return SchNetOnQm9(SchNetOptions(**({"hidden_channels": 16} | sizes | options)))


def seeds(samples: int) -> np.ndarray:
    return np.zeros(samples, np.uint64)


def evaluated(workload, model) -> dict[str, float]:
    dataset = workload.evaluation_data()
    with torch.no_grad():
        data = dataset.batch(np.arange(len(dataset)), seeds(len(dataset)))
        sums = {name: float(value) for name, value in workload.evaluate(model, data).items()}
    return workload.metrics(sums | {"samples": len(dataset)})


@pytest.mark.parametrize(
    ("entry", "factory", "options"),
    [(SCHNET, SchNetOnQm9, SchNetOptions), (DIMENET, DimeNetOnQm9, DimeNetOptions)],
    ids=["schnet", "dimenet"],
)
def test_the_nets_have_the_papers_parameters(entry, factory, options):
    model = factory(options(train_samples=4, evaluation_samples=1)).model()
    assert sum(weight.numel() for weight in model.parameters()) == entry.parameters


def test_mae_is_in_the_property_s_unit():
    workload = schnet(train_samples=64, evaluation_samples=16, target="Cv")
    model, dataset = workload.model(), workload.evaluation_data()
    *graph, targets = dataset.batch(np.arange(16), seeds(16))
    with torch.no_grad():
        predicted = model(*graph, molecules=16) * model.std + model.mean
    found = evaluated(workload, model)
    assert list(found) == ["loss", "mae"]
    assert found["mae"] == pytest.approx(float((predicted - targets).abs().mean()), rel=1e-5)
    assert found["mae"] == pytest.approx(found["loss"] * float(model.std), rel=1e-5)


def test_targets_are_standardised_by_the_training_molecules():
    workload = schnet(train_samples=64, evaluation_samples=16)
    *_, targets = workload.training_data().batch(np.arange(64), seeds(64))
    model = workload.model()
    assert float(model.mean) == pytest.approx(float(targets.double().mean()))
    assert float(model.std) == pytest.approx(float(targets.double().std(correction=0)))


@pytest.fixture
def data(tmp_path):
    make_data(tmp_path / "qm9", 24, seed=0)
    return tmp_path / "qm9"


def raw(data: Path) -> Path:
    return data / "raw" / "qm9_v3.pt"


@pytest.mark.skipif(
    importlib.util.find_spec("rdkit") is not None, reason="with rdkit PyG reads another file"
)
def test_pytorch_geometric_reads_the_same_molecules_from_a_made_file(data):
    from torch_geometric.datasets import QM9

    ours, theirs = qm9.read(data), QM9(str(data))
    assert len(theirs) == len(ours) == 24
    assert set(theirs[0].keys()) == {"y", "pos", "z"}
    assert np.array_equal(torch.cat([one.z for one in theirs]).numpy(), ours.z)
    assert np.array_equal(torch.cat([one.pos for one in theirs]).numpy(), ours.pos)
    assert np.array_equal(torch.cat([one.y for one in theirs]).numpy(), ours.targets)


def test_the_split_is_the_same_in_every_run_and_no_molecule_is_in_both_parts(data):
    torch.manual_seed(1)
    one = qm9.split(data, 130_831, 110_000, 10_000)
    torch.manual_seed(2)
    np.random.seed(2)
    other = qm9.split(data, 130_831, 110_000, 10_000)
    assert all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))
    assert [len(part) for part in one] == [110_000, 10_000]
    assert len(np.unique(np.concatenate(one))) == 120_000


@pytest.mark.parametrize(
    ("molecules", "parts"), [(2, (1, 1)), (24, (22, 2)), (12_000, (11_000, 1000))]
)
def test_a_small_file_is_split_in_the_same_proportion(molecules, parts, tmp_path):
    train, evaluation = qm9.split(tmp_path, molecules, 110_000, 10_000)
    assert (len(train), len(evaluation)) == parts


def test_the_target_is_the_column_of_its_name(data):
    workload = schnet(source="qm9", data=str(data), target="C")
    *_, targets = workload.training_data().batch(np.arange(22), seeds(22))
    train, _ = qm9.split(data, 24, 110_000, 10_000)
    assert np.array_equal(targets.numpy(), qm9.read(data).targets[train, 18])


def put(record: dict, key: str, value: object) -> None:
    record[key] = value


def put_at(record: dict, key: str, place: object, value: float) -> None:
    record[key] = record[key].clone()
    record[key][place] = value


def cut(record: dict, atoms: int) -> None:
    record["z"], record["pos"] = record["z"][:atoms], record["pos"][:atoms]


BAD_RECORDS = {
    "one atom": (lambda r: cut(r, 1), "fewer than 2 atoms"),
    "pos of others": (lambda r: put(r, "pos", r["pos"][1:]), "pos has shape"),
    "12 properties": (lambda r: put(r, "y", r["y"][:, :12]), r"y has shape \(1, 12\)"),
    "nan": (lambda r: put_at(r, "pos", (1, 0), float("nan")), "allowed: finite numbers"),
    "element 0": (lambda r: put_at(r, "z", 0, 0), "z has other numbers; allowed: atomic"),
    "one place": (
        lambda r: put(r, "pos", r["pos"][[0, 1, 1, *range(3, len(r["z"]))]]),
        "a position twice",
    ),
    "no target": (lambda r: put_at(r, "y", (0, 7), float("inf")), "inf for target U0"),
}


@pytest.mark.parametrize(("spoil", "words"), BAD_RECORDS.values(), ids=BAD_RECORDS.keys())
def test_a_bad_record_is_named_with_its_file(data, spoil, words):
    records = torch.load(raw(data))
    spoil(records[17])
    torch.save(records, raw(data))
    with pytest.raises(BadInput, match=words) as caught:
        schnet(source="qm9", data=str(data)).training_data()
    text = str(caught.value)
    assert text.startswith(f"{raw(data)}: record 17 ")
    assert "allowed: " in text
    assert "\n" not in text


BAD_FILES = {
    "missing": (lambda path: path.unlink(), "no such file; download it"),
    "text": (lambda path: path.write_text("molecules"), "not a file of tensors"),
    "cut": (lambda path: path.write_bytes(path.read_bytes()[:2000]), "not a file of tensors"),
    "code": (lambda path: torch.save([Path()], path), "not a file of tensors"),
    "a dict": (lambda path: torch.save({"z": 1}, path), "contains a dict"),
    "nothing": (lambda path: torch.save([], path), "contains no records"),
}


@pytest.mark.parametrize(("spoil", "words"), BAD_FILES.values(), ids=BAD_FILES.keys())
def test_a_file_that_is_none_is_named(data, spoil, words):
    spoil(raw(data))
    with pytest.raises(BadInput, match=words) as caught:
        schnet(source="qm9", data=str(data)).training_data()
    assert str(caught.value).startswith(str(raw(data)))
    assert "\n" not in str(caught.value)
