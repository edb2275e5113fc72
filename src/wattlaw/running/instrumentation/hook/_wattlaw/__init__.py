"""Records the training of the script that imports torch; ``sitecustomize`` loads it from here.

Standard library only, Python 3.9 or later. An error stops a part of the recording and is recorded;
the script does not notice it.
"""
