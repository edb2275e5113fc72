"""Slurm's Prolog and Epilog, run by root on each node: ``python -I -m wattlaw_site prolog``.

``docs/site.md`` says how to install them. A job that requests no limit, on a node with no
limit to restore, costs little more than the start of Python.
"""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from wattlaw.common import crash
from wattlaw.common.errors import WattlawError, one_line
from wattlaw.measure.devices import sysfs
from wattlaw_site.job import NodeJob, SitePaths, log, requests_limit


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a hook and return its exit code.

    The exit code of the prolog is always 0: else Slurm drains the node and starts the job on
    another one. The epilog's is 1 if a GPU stays limited, so that Slurm drains the node.
    """
    options = _parser().parse_args(arguments)
    os.environ.pop(sysfs.ROOT_VARIABLE, None)  # root limits the devices of this machine
    os.umask(0o022)  # jobs can read the reports, and only root can write
    run: Callable[[SitePaths, argparse.Namespace], int] = options.run
    return run(SitePaths(options.config, options.state, options.reports), options)


def _prolog(paths: SitePaths, _: argparse.Namespace) -> int:
    try:
        job = NodeJob.from_environ(os.environ)
        comment = job.comment()
        report = paths.report(job.job_id, job.node)
        if requests_limit(comment) or paths.has_states() or report.exists():
            from wattlaw_site import hooks

            hooks.prolog(paths, job, comment)
    except Exception as error:  # whatever it is, it must not stop a job or a node
        log(f"prolog: {one_line(error)}")
    return 0


def _epilog(paths: SitePaths, _: argparse.Namespace) -> int:
    try:
        job = NodeJob.from_environ(os.environ)
        if paths.has_states() or paths.report(job.job_id, job.node).exists():
            from wattlaw_site import hooks

            hooks.epilog(paths, job)
    except Exception as error:  # a GPU may stay limited, so the node must run no job
        log(f"epilog: {one_line(error)}")
        return 1
    return 0


def _restore(paths: SitePaths, options: argparse.Namespace) -> int:
    try:
        if paths.has_states():
            from wattlaw_site import hooks

            hooks.restore(paths, also_running=options.all)
    except (WattlawError, OSError) as error:
        log(f"restore: {one_line(error)}")
        return 1
    return 0


def _show(paths: SitePaths, _: argparse.Namespace) -> int:
    from wattlaw_site import hooks

    try:
        lines = hooks.show(paths)
    except (WattlawError, OSError) as error:
        print(f"wattlaw: {one_line(error)}", file=sys.stderr)
        return 1
    print("\n".join(lines) or "No GPU is limited for a job.")
    return 0


def _watch(paths: SitePaths, options: argparse.Namespace) -> int:
    from wattlaw_site.watch import Watch

    job = NodeJob(options.job_id, options.node)
    Watch(paths, job, options.token, options.devices, options.grace_s).run()
    return 0


def _parser() -> argparse.ArgumentParser:
    shared = argparse.ArgumentParser(add_help=False)
    defaults = SitePaths()
    shared.add_argument("--config", type=Path, default=defaults.config, help="the site file")
    shared.add_argument("--state", type=Path, default=defaults.state, help="previous limits")
    shared.add_argument("--reports", type=Path, default=defaults.reports, help="reports to jobs")
    parser = argparse.ArgumentParser("python -I -m wattlaw_site", description=main.__doc__)
    commands = parser.add_subparsers(required=True)
    for run, text in (
        (_prolog, "limit the GPUs of a job that requests it"),
        (_epilog, "restore the limits from before a job"),
        (_show, "show which GPU is limited for which job"),
        (_restore, "restore the limits of ended jobs"),
        (_watch, "started by the prolog"),
    ):
        name = run.__name__.removeprefix("_")
        commands.add_parser(name, parents=[shared], help=text).set_defaults(run=run)
    restore, watch = commands.choices["restore"], commands.choices["watch"]
    restore.add_argument("--all", action="store_true", help="also those of running jobs")
    for name in ("job_id", "node", "token"):
        watch.add_argument(name)
    watch.add_argument("grace_s", type=float)
    watch.add_argument("devices", nargs="+")
    return parser


if __name__ == "__main__":
    sys.exit(crash.run(main))
