"""From a job to its prediction."""

from wattlaw.simulator.job import Job, Prediction


def predict(job: Job) -> Prediction:
    """Return time, power and utilisation of a job's epoch."""
    raise NotImplementedError
