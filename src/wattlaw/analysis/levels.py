"""How sure a finding has to be."""

#: A test that there is nothing to find may find something so often.
ERROR = 0.05
#: Intervals hold what they are for so often.
LEVEL = 1 - ERROR
