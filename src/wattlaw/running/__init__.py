"""Campaigns, launchers, the training loop, and the recorder of steps.

Not ``run``: that is a function of the Python API, which a package of this name would hide.
"""
