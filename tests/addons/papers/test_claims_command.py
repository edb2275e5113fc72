"""``wattlaw claims`` on measured power caps, and what its documentation says."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import wattlaw
from public_data import ORIGINS, public_csv
from wattlaw.api.imports import import_files
from wattlaw.common.errors import BadInput
from wattlaw_papers.api import claims_of
from wattlaw_papers.claims import CLAIMS
from wattlaw_papers.claims_command import claims

DOCS = Path("docs/papers.md")
MAP = (
    "gpus=@1,workload=network,hardware=gpu,global_batch=batch_size,power_limit_w=power_limit,"
    "epoch_time_s=time_per_epoch,power_w=average_power"
)


@pytest.fixture(params=ORIGINS)
def rows(request):
    table = pd.read_csv(public_csv("power_caps.csv", request.param))
    ours = (table["gpu"] == "V100") & table["dataset"].isin(["squad", "movielens-1m"])
    return table[ours]


@pytest.fixture
def store(rows, tmp_path):
    rows.to_csv(tmp_path / "caps.csv", index=False)
    import_files(tmp_path / "caps.csv", tmp_path / "store", map=MAP)
    return tmp_path / "store"


def test_a_cap_of_200_w_on_measured_v100_costs_what_the_table_says(store, rows, capsys):
    capsys.readouterr()
    assert claims([store], as_json=True) == 0
    found = {one["name"]: one for one in json.loads(capsys.readouterr().out)}
    claim = found["200w-costs-no-speed"]
    assert claim["verdict"] == "contradicted"  # by BERT, which a V100 of 250 W trains 6.6 % slower
    bert = rows[rows["dataset"] == "squad"].pivot_table(
        index="batch_size", columns="power_limit", values="time_per_epoch"
    )
    slower = np.exp(np.log(bert[200] / bert[250]).mean()) - 1
    (numbers,) = [v for label, v in claim["numbers"].items() if label.startswith("bert")]
    assert numbers["time_ratio"] == pytest.approx(slower)
    assert found["128-v100-22-kg-co2-per-hour"]["verdict"] == "not decidable"


def test_claims_in_python_have_verdicts_by_name_and_a_table(store):
    found = claims_of(wattlaw.open(store))
    assert found["200w-costs-no-speed"].verdict == "contradicted"
    frame = found.to_frame()
    assert len(found) == len(frame) == len(found.to_dict()["claims"]) == len(CLAIMS)
    assert [claim.name for claim in found] == frame["name"].tolist()
    assert "<table" in found._repr_html_()
    with pytest.raises(BadInput, match='claim: given "no-such-claim"; allowed: '):
        found["no-such-claim"]


def test_the_documentation_has_every_claim_with_its_criterion():
    text = DOCS.read_text(encoding="utf-8")
    told = " ".join(text.split())
    for claim in CLAIMS:
        (row,) = (line for line in text.splitlines() if f"| `{claim.name}` |" in line)
        there, here = row.strip("| ").split(" | ")[-2:]
        assert there and here, "run make bench-papers"
        for words in (f"`{claim.name}`", claim.claim, claim.criterion):
            assert " ".join(words.split()) in told, words
