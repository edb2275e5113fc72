#!/bin/sh
# slurm.conf: Prolog=. Root runs it on each node before a job. It limits the job's GPUs if the
# job's comment asks for that; whatever happens it ends with 0, so that no node is drained for it.
PYTHON=@PYTHON@
PATH=@PATH@ # of squeue; slurmd gives a prolog no path
CONFIG=/etc/wattlaw/site.yaml
STATE=/var/lib/wattlaw/limits
REPORTS=/run/wattlaw
export PATH

# Most jobs ask for nothing, on nodes where nothing is to be given back: they wait for no Python.
[ -n "${SLURM_JOB_GPUS-}" ] || exit 0
needed=yes
if [ -n "${SLURM_JOB_RESTART_COUNT-}" ]; then # a Slurm that tells this tells the comment, too
    case ${SLURM_JOB_COMMENT-} in *wattlaw:*) ;; *) needed= ;; esac
fi
for saved in "$STATE"/*.json; do
    [ ! -e "$saved" ] || needed=yes
done
[ -n "$needed" ] || exit 0

"$PYTHON" -I -m wattlaw.limits.site prolog \
    --config="$CONFIG" --state="$STATE" --reports="$REPORTS" || exit 0
