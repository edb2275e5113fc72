"""Predicts time, power and energy of settings that were not measured, with calibrated intervals.

One model of an optimizer step (``model``, ``power``), learned from all observations of a job
(``posterior``), answers every question about such settings (``predict``).
"""

from wattlaw.analysis.predict.intervals import Prediction
from wattlaw.analysis.predict.observation import Observation
from wattlaw.analysis.predict.posterior import fit
from wattlaw.analysis.predict.predictions import predict

__all__ = ["Observation", "Prediction", "fit", "predict"]
