"""``wattlaw advise``: JSON, text, and options that cannot be read."""

import json
from pathlib import Path

import pytest

from made_stores import write_store
from made_studies import MIT, mit
from wattlaw.api import results
from wattlaw.cli.commands.advise import advise as advise_command
from wattlaw.errors import BadInput


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give dimenet on 2 to 128 GPUs under caps and clocks: 200 W costs no time and saves 15 %."""
    made = mit(models={"dimenet": MIT["dimenet"]}, noise=0.005)
    return write_store(tmp_path_factory.mktemp("store"), made.runs, made.epochs).path


def test_the_command_prints_json_that_is_the_advice(store, capsys):
    code = advise_command([store], "dimenet", deadline="30min", epochs=3, grid="400", as_json=True)
    told = json.loads(capsys.readouterr().out)
    assert code == 0
    assert told == results.open(store).advise(deadline=1800, epochs=3, grid=400).to_dict()
    assert set(told) == {"workload", "recommended", "reason", "nearest", "pareto", "next_doubling",
                         "counted", "origin", "simulated", "warnings", "unit",
                         "decision"}  # fmt: skip
    assert set(told["pareto"][0]) == set(told["recommended"])


def test_the_command_prints_text_before_the_tables(store, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert advise_command([store], "dimenet", max_slowdown="5%", price="0.2", grid="de") == 0
    text = capsys.readouterr().out
    first = text.splitlines()[0]
    assert first.startswith("Run dimenet on 128 GPUs, 200 W, free clock, batch 128 each")
    for words in ("kWh", "GPU-hours", "currency units", "kg CO2e", "Germany", "128 *",
                  "Twice as many GPUs (256, same local batch, predicted)", "Counted:",
                  "Warning: The next doubling"):  # fmt: skip
        assert words in text, words


def test_the_command_names_an_answer_that_is_none(store, capsys):
    assert advise_command([store], "dimenet", deadline="1s", max_gpus=2) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "Nothing to recommend for dimenet: No setting meets the deadline of 1 s" in text
    assert "Nearest: 2 GPUs" in text


@pytest.mark.parametrize(
    ("asked", "words"),
    [({"deadline": "6"}, "deadline: "), ({"max_slowdown": "5"}, "max_slowdown: "),
     ({"energy_budget": "50"}, "energy_budget: "), ({"grid": "atlantis"}, "grid: ")],
)  # fmt: skip
def test_the_command_names_an_option_that_it_cannot_read(store, asked, words):
    with pytest.raises(BadInput, match=words):
        advise_command([store], "dimenet", **asked)
