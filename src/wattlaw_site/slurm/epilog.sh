#!/bin/sh
# slurm.conf: Epilog=. Root runs it on each node after a job. It restores the limits of the job's GPUs
# from before the job. If it cannot, its exit code is not 0, and Slurm drains the node.
PYTHON=@PYTHON@
PATH=@PATH@
STATE=/var/lib/wattlaw/limits
REPORTS=/run/wattlaw
export PATH

for left in "$STATE"/*.json "$REPORTS/${SLURM_JOB_ID-}".*.json; do
    [ -e "$left" ] || continue
    exec "$PYTHON" -I -m wattlaw_site epilog --state="$STATE" --reports="$REPORTS"
done
exit 0 # the usual case: nothing was limited on this node
