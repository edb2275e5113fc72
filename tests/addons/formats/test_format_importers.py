"""The suite of importers, for those of the add-on."""

import pytest

from import_samples import SAMPLES
from importer_suite import ImporterSuite
from wattlaw.common import registry
from wattlaw.importing.importer import GROUP
from wattlaw.store import decoded_size

OF_ADDON = [sample for sample in SAMPLES
            if type(registry.load(GROUP, sample.format)).__module__.startswith("wattlaw_formats")
            or sample.format == "amd-smi"]  # fmt: skip


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some of perun's damaged files make HDF5 loop without end."""
    monkeypatch.setattr(decoded_size, "_LEAST_S", 5.0)


@pytest.mark.parametrize("sample", OF_ADDON, ids=lambda sample: sample.file)
class TestAddonImporters(ImporterSuite):
    pass
