"""The epochs that a global batch needs: the critical-batch model.

    E(B) = E_min (1 + B / B_crit)

E_min is the number of epochs of small batches, and B_crit the batch that needs twice as many
(McCandlish et al. 2018, arXiv 1812.06162, in epochs of a fixed data set: steps are E times samples
over B). The user gives both; ``wattlaw report`` fits them to measured studies.
"""


def epochs_to_target(global_batch: float, critical_batch: float, least_epochs: float) -> float:
    """Return the epochs that a global batch needs to the target that defines ``least_epochs``."""
    return least_epochs * (1 + global_batch / critical_batch)
