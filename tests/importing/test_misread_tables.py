"""Public inputs that were misread once, with their right values.

Each stands for a kind; test_import_formats.py and test_importing.py have others of it.
"""

from pathlib import Path

import pytest

import public_data
from wattlaw.api.imports import Import, read_import


def misread(name: str) -> Path:
    """Return a public input; skip if it is absent."""
    path = public_data._folder() / "misread" / name
    if not path.exists():
        pytest.skip(f"no misread/{name}; see docs/benchmarks.md")
    return path


# slurm


def energies(read: Import) -> list[float | None]:
    return [run.record.site.energy_j for run in read.runs if run.record.site is not None]


@pytest.mark.parametrize("kind", ["txt", "json"])
def test_steps_of_a_job_that_follow_each_other_add_up(kind):
    assert energies(read_import(misread(f"sacct_sequential_steps.{kind}"))) == [1_259_520_000.0]


def test_energies_that_slurm_or_no_node_has_are_unknown():
    read = read_import(misread("sacct_no_val.txt"))
    assert energies(read) == [None, None, None, None, 3_600_000.0]
    reasons = [note for run in read.runs for note in run.record.notes if "energy unknown" in note]
    kinds = ("no value", "no value", "negative", "power that no node has")
    assert len(reasons) == 4
    assert all(kind in reason for kind, reason in zip(kinds, reasons, strict=True))


def test_an_energy_in_three_digits_is_read_and_marked():
    read = read_import(misread("sacct_consumedenergy.txt"))
    assert energies(read) == [4_580_000.0]
    assert any("ConsumedEnergyRaw has all" in note for note in read.files[0].notes)
