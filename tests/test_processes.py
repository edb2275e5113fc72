"""Functions that all programs of wattlaw share."""

import subprocess
import sys

CODE = """
import gc, weakref
from wattlaw.processes import collector_paused

class Ring:
    def __init__(self):
        self.myself = self

def dropped():
    return weakref.ref(Ring())

try:
    with collector_paused():
        early = dropped()
        assert not gc.isenabled()
        raise ValueError
except ValueError:
    assert gc.isenabled()
late = dropped()
gc.collect()
print(early() is None, late() is None)
"""


def test_garbage_of_a_programs_begin_stays_and_later_garbage_is_found():
    ran = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["False", "True"]
