"""How many epochs a global batch needs: the critical-batch model.

    E(B) = E_min (1 + B / B_crit)

E_min is what small batches need, B_crit where the need has doubled (McCandlish et al. 2018, arXiv
1812.06162, in epochs of a fixed data set: steps are E times samples over B). Both are the user's:
``wattlaw report`` fits them to measured studies; nothing here knows them of a model.
"""


def epochs_to_target(global_batch: float, critical_batch: float, least_epochs: float) -> float:
    """Return the epochs that a global batch needs to the target that defines ``least_epochs``."""
    return least_epochs * (1 + global_batch / critical_batch)
