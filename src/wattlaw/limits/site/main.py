"""Slurm's Prolog and Epilog, run by root on each node: ``python -I -m wattlaw.limits.site prolog``.

``docs/slurm-admin.md`` says how they are installed. A job that asks for nothing, on a node where
nothing is to be given back, costs the start of Python and little more.
"""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from wattlaw.errors import WattlawError, one_line
from wattlaw.limits.site.job import Job, Place, mentions, tell


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what a hook is started for, and return its exit code.

    The prolog's is 0 whatever happens: Slurm would drain the node and start the job elsewhere. The
    epilog's is 1 where a board stays limited, so that Slurm drains the node.
    """
    given = _parser().parse_args(arguments)
    os.umask(0o022)  # what jobs are to read they can, and others write nothing
    place = Place(given.config, given.state, given.reports)
    do: dict[str, Callable[[Place, argparse.Namespace], int]] = {
        "prolog": _prolog,
        "epilog": _epilog,
        "restore": _restore,
        "show": _show,
        "watch": _watch,
    }
    return do[given.command](place, given)


def _prolog(place: Place, _: argparse.Namespace) -> int:
    try:
        job = Job.of(os.environ)
        comment = job.comment()
        report = place.report(job.job_id, job.node)
        if mentions(comment) or place.has_states() or report.exists():
            from wattlaw.limits.site import hooks

            hooks.prolog(place, job, comment)
    except Exception as error:  # whatever it is, no job and no node is stopped by it
        tell(f"prolog: {one_line(error)}")
    return 0


def _epilog(place: Place, _: argparse.Namespace) -> int:
    try:
        job = Job.of(os.environ)
        if place.has_states() or place.report(job.job_id, job.node).exists():
            from wattlaw.limits.site import hooks

            hooks.epilog(place, job)
    except Exception as error:  # as a board may stay limited, the node must not go on
        tell(f"epilog: {one_line(error)}")
        return 1
    return 0


def _restore(place: Place, given: argparse.Namespace) -> int:
    try:
        if place.has_states():
            from wattlaw.limits.site import hooks

            hooks.restore(place, also_running=given.all)
    except (WattlawError, OSError) as error:
        tell(f"restore: {one_line(error)}")
        return 1
    return 0


def _show(place: Place, _: argparse.Namespace) -> int:
    from wattlaw.limits.site import hooks

    try:
        lines = hooks.show(place)
    except (WattlawError, OSError) as error:
        print(f"wattlaw: {one_line(error)}", file=sys.stderr)
        return 1
    print("\n".join(lines) or "No board is limited for a job.")
    return 0


def _watch(place: Place, given: argparse.Namespace) -> int:
    from wattlaw.limits.site import watch

    job = Job(given.job_id, given.node)
    watch.run(place, job, given.token, given.devices, given.grace_s)
    return 0


def _parser() -> argparse.ArgumentParser:
    shared = argparse.ArgumentParser(add_help=False)
    usual = Place()
    shared.add_argument("--config", type=Path, default=usual.config, help="the site's file")
    shared.add_argument("--state", type=Path, default=usual.state, help="previous limits")
    shared.add_argument("--reports", type=Path, default=usual.reports, help="what jobs are told")
    parser = argparse.ArgumentParser("python -I -m wattlaw.limits.site", description=main.__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("prolog", parents=[shared], help="limit the boards of a job that asks")
    commands.add_parser("epilog", parents=[shared], help="give back what was there before a job")
    commands.add_parser("show", parents=[shared], help="tell what is limited for which job")
    restore = commands.add_parser("restore", parents=[shared], help="give back for ended jobs")
    restore.add_argument("--all", action="store_true", help="for jobs that run, too")
    watch = commands.add_parser("watch", parents=[shared], help="started by the prolog")
    for name in ("job_id", "node", "token"):
        watch.add_argument(name)
    watch.add_argument("grace_s", type=float)
    watch.add_argument("devices", nargs="+")
    return parser
