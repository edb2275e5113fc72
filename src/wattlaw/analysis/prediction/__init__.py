"""Predicts time, power and energy of settings that were not measured, with calibrated intervals.

One model of an optimizer step (``model``, ``power``), learned from all observations of a job
(``posterior``), answers every question about such settings (``predict``).
"""

from wattlaw.analysis.prediction.posterior import fit
from wattlaw.analysis.prediction.predict import predict
from wattlaw.analysis.prediction.results import Prediction
from wattlaw.analysis.prediction.settings import Observation, TrainingSetting

__all__ = ["Observation", "Prediction", "TrainingSetting", "fit", "predict"]
