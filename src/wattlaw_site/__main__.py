"""Slurm's Prolog and Epilog, run by root on each node: ``python -I -m wattlaw_site prolog``.

``docs/site.md`` says how to install them. A job that requests no limit, on a node with no limit to
restore, costs little more than the start of Python.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from wattlaw.common import crash
from wattlaw.common.errors import WattlawError, one_line
from wattlaw.measure.devices import sysfs
from wattlaw.measure.limits.prolog_request import requests_limit
from wattlaw_site.site_job import NodeJob, SitePaths, log

_COMMANDS = {
    "prolog": "limit the GPUs of a job that requests it",
    "epilog": "restore the limits from before a job",
    "show": "show which GPU is limited for which job",
    "restore": "restore the limits of ended jobs",
    "watch": "started by the prolog",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a hook and return its exit code.

    The exit code of the prolog is always 0: else Slurm drains the node and starts the job on
    another one. The epilog's is 1 if a GPU stays limited, so that Slurm drains the node.
    """
    options = _parser().parse_args(arguments)
    os.environ.pop(sysfs.ROOT_VARIABLE, None)  # root limits the devices of this machine
    os.umask(0o022)  # jobs can read the reports, and only root can write
    command, is_hook = options.command, options.command in ("prolog", "epilog")
    try:
        _run(command, SitePaths(options.config, options.state, options.reports), options)
    except Exception as error:
        # Whatever stops a hook, it must be a line in the log: the prolog may not stop a job, and
        # after the epilog a GPU may stay limited, so the node must run no job.
        if not is_hook and not isinstance(error, WattlawError | OSError):
            raise
        log(f"{command}: {one_line(error)}")
        return 0 if command == "prolog" else 1
    return 0


def _run(command: str, paths: SitePaths, options: argparse.Namespace) -> None:
    if command == "watch":
        from wattlaw_site.watch import Watch

        job = NodeJob(options.job_id, options.node)
        Watch(paths, job, options.token, options.devices, options.grace_s).run()
        return
    job, comment, has_states = NodeJob("", ""), "", any(paths.state.glob("*.json"))
    if command in ("prolog", "epilog"):
        job = NodeJob.from_environ(os.environ)
        comment = job.comment() if command == "prolog" else ""
        has_states = has_states or paths.report(job.job_id, job.node).exists()
    if not (has_states or requests_limit(comment) or command == "show"):
        return
    from wattlaw_site import hooks

    if command == "prolog":
        hooks.prolog(paths, job, comment)
    elif command == "epilog":
        hooks.epilog(paths, job)
    elif command == "restore":
        hooks.restore(paths, also_running=options.all)
    else:
        print("\n".join(hooks.show(paths)) or "No GPU is limited for a job.")


def _parser() -> argparse.ArgumentParser:
    shared = argparse.ArgumentParser(add_help=False)
    defaults = SitePaths()
    shared.add_argument("--config", type=Path, default=defaults.config, help="the site file")
    shared.add_argument("--state", type=Path, default=defaults.state, help="previous limits")
    shared.add_argument("--reports", type=Path, default=defaults.reports, help="reports to jobs")
    parser = argparse.ArgumentParser("python -I -m wattlaw_site", description=main.__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, text in _COMMANDS.items():
        commands.add_parser(name, parents=[shared], help=text)
    restore, watch = commands.choices["restore"], commands.choices["watch"]
    restore.add_argument("--all", action="store_true", help="also those of running jobs")
    for name in ("job_id", "node", "token"):
        watch.add_argument(name)
    watch.add_argument("grace_s", type=float)
    watch.add_argument("devices", nargs="+")
    return parser


if __name__ == "__main__":
    sys.exit(crash.run(main))
