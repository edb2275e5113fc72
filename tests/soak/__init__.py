"""The project's own campaign: it tries to break wattlaw with damaged inputs, kills and attacks.

``make soak`` runs it; docs/benchmarks.md says what it does and how to replay a failure.
"""
