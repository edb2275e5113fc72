"""Calibrations as files: JSON, read back with everything checked that a prediction relies on."""

import json
from pathlib import Path

import numpy as np

from wattlaw.errors import BadInput
from wattlaw.simulator.calibration import NAMES, Calibration
from wattlaw.simulator.cluster import Gpu
from wattlaw.study.document import read_document

_WORK = "work:"
_MAX_COVARIANCE = 1e300  # eigenvalues of larger ones overflow


def calibration_json(calibration: Calibration) -> str:
    """Return a calibration as the text of its file, a line for each key and row."""
    data = calibration.model_dump(mode="json")
    rows = ",\n".join(f"    {json.dumps(row)}" for row in data.pop("covariance"))
    lines = [f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in data.items()]
    return "{\n" + ",\n".join([*lines, f'  "covariance": [\n{rows}\n  ]']) + "\n}\n"


def read_calibration(path: Path, gpu: Gpu | None = None) -> Calibration:
    """Return the calibration of a file that ``wattlaw calibrate`` wrote.

    Parameters
    ----------
    path
        The file.
    gpu
        The board that is to be simulated; None to take a calibration of any.

    Raises
    ------
    BadInput
        It cannot be read, is no calibration, or is one of another board: one line with the file,
        the key, what was given and what is allowed.
    """
    found = read_document(path, Calibration, "calibration file")
    fault = _fault(found)
    if fault is not None:
        raise BadInput(f"{path}: {fault}; allowed: what 'wattlaw calibrate' writes")
    if gpu is not None and found.gpu != gpu.name:
        raise BadInput(
            f"{path}: gpu: given {found.gpu!a:.80}; allowed for this hardware: {gpu.name}"
        )
    return found


def _fault(found: Calibration) -> str | None:
    """Return what of a calibration does not fit together, or None."""
    works = tuple(f"{_WORK}{name}" for name in found.work_factors)
    if found.names != (*NAMES, *works):
        return "names: not the parameters of this version and then the workloads"
    size = len(found.names)
    if len(found.covariance) != size or any(len(row) != size for row in found.covariance):
        return f"covariance: not {size} rows of {size} numbers"
    covariance = np.array(found.covariance)
    scale = float(np.abs(covariance).max())
    if scale > _MAX_COVARIANCE:
        return f"covariance: a number beyond {_MAX_COVARIANCE:g}"
    least = float(np.linalg.eigvalsh((covariance + covariance.T) / 2)[0])
    if not np.allclose(covariance, covariance.T, atol=1e-6 * scale) or least < -1e-6 * scale:
        return "covariance: not that of any numbers"
    return None
