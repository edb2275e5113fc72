#!/bin/sh
# slurm.conf: Prolog=. Root runs it on each node before a job. It limits the job's GPUs if the
# job's comment requests that. Its exit code is always 0, so that no node is drained.
PYTHON=@PYTHON@
PATH=@PATH@ # for squeue; slurmd sets no PATH for a prolog
CONFIG=/etc/wattlaw/site.yaml
STATE=/var/lib/wattlaw/limits
REPORTS=/run/wattlaw
export PATH

# Most jobs request no limit, on nodes without limits to restore. They do not wait for Python.
[ -n "${SLURM_JOB_GPUS-}" ] || exit 0
needed=yes
if [ -n "${SLURM_JOB_RESTART_COUNT-}" ]; then # such a Slurm sets the comment, too
    case ${SLURM_JOB_COMMENT-} in *wattlaw:*) ;; *) needed= ;; esac
fi
for saved in "$STATE"/*.json; do
    [ ! -e "$saved" ] || needed=yes
done
[ -n "$needed" ] || exit 0

"$PYTHON" -I -m wattlaw_site prolog \
    --config="$CONFIG" --state="$STATE" --reports="$REPORTS" || exit 0
