"""Readers that no command line leads to directly, called as the rest of wattlaw calls them.

A function gets the sandbox and the options of the case. It returns what is wrong, or None.
An exception other than ``WattlawError`` is a failure.
"""

import contextlib
from collections.abc import Callable
from typing import Any

from soak.sandbox import Sandbox
from soak.templates import RUN_ID


def live_run(sandbox: Sandbox, options: dict[str, Any]) -> str | None:
    """Finish the attempt of a run from its live files."""
    from wattlaw.common.errors import WattlawError
    from wattlaw.running.finish import failure_reason, finish
    from wattlaw.store.run_folder import RunFolder

    folder, record = RunFolder(sandbox.inputs / "live" / RUN_ID), None
    with contextlib.suppress(WattlawError):
        record = folder.read()
    if record is None:
        return None
    failure_reason(folder, 1, 1)
    try:
        done = finish(record, folder)
    except WattlawError as error:
        told = f"a WattlawError ends a run that has all windows: {error}"
        return told if options["is_whole"] else None
    if options["is_whole"] and done.status != "done":
        return f"a run with all windows is {done.status}: {done.reason}"
    if done.status == "done":
        import pyarrow.parquet as pq

        pq.read_table(folder.epochs_path)
    return None


def site(sandbox: Sandbox, options: dict[str, Any]) -> str | None:
    """Run a Slurm hook of an administrator's node with damaged files."""
    from wattlaw_site.__main__ import main

    config = sandbox.inputs / "site.yaml"
    words = [options["command"], f"--config={config}", f"--state={sandbox.inputs / 'state'}"]
    words += [f"--reports={sandbox.root / 'reports'}"]
    try:
        code = main(words)
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    if options["command"] == "prolog" and code != 0:
        return f"exit code {code} of the prolog: it would take the node out of service"
    return None if code in (0, 1, 2, 3) else f"exit code {code}: of {options['command']}"


def saved_limits(sandbox: Sandbox, _: dict[str, Any]) -> str | None:
    """Read and restore saved states of limits; the boards keep what they have."""
    from fake_nvml import FakeGpus
    from wattlaw.common.errors import WattlawError
    from wattlaw.measure.limits.restore import restore_stale
    from wattlaw.measure.limits.state_folder import StateFolder

    boards = FakeGpus(sandbox.boards_path)
    before = [board.limit_mw for board in boards]
    folder = StateFolder(sandbox.inputs / "limits")
    with contextlib.suppress(WattlawError):
        folder.survey()
        restore_stale(folder, include_kept=True)
    after = [board.limit_mw for board in boards]
    return None if before == after else f"boards without permission change: {before} to {after}"


PARSERS: dict[str, Callable[[Sandbox, dict[str, Any]], str | None]] = {
    one.__name__: one for one in (live_run, site, saved_limits)
}
