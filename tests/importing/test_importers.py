"""The suite of importers, for those of the core."""

import pytest

from import_samples import SAMPLES
from importer_suite import ImporterSuite
from wattlaw.common import registry
from wattlaw.importing.importer import GROUP

CORE = {"nvidia-smi", "zeus", "zeus-power", "slurm", "table", "windows", "log"}
OF_CORE = [sample for sample in SAMPLES if sample.format in CORE]


def test_every_importer_has_a_sample():
    assert {sample.format for sample in SAMPLES} == {*registry.names(GROUP)}


@pytest.mark.parametrize("sample", OF_CORE, ids=lambda sample: sample.file)
class TestCoreImporters(ImporterSuite):
    pass
