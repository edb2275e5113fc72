"""Readers that no command line leads to directly, called as the rest of wattlaw calls them.

A function gets the sandbox and the options of the case. It returns what is wrong, or None.
An exception other than ``WattlawError`` is a failure.
"""

import contextlib
import math
import os
from collections.abc import Callable
from typing import Any

from soak.sandbox import Sandbox
from soak.templates import HOST, RUN_ID

#: How far an energy with verdict ok may be from the true one.
TOLERANCE = 0.25
_START_NS = 1_700_000_000_000_000_000


def live_run(sandbox: Sandbox, options: dict[str, Any]) -> str | None:
    """Finish the attempt of a run from its live files."""
    from wattlaw.common.errors import WattlawError
    from wattlaw.running.finish import failure_reason, finish
    from wattlaw.store.run_folder import RunFolder

    folder = RunFolder(sandbox.inputs / "live" / RUN_ID)
    try:
        record = folder.read()
    except WattlawError:
        return None
    if record is None:
        return None
    failure_reason(folder, 1, 1)
    try:
        done = finish(record, folder)
    except WattlawError as error:
        return (
            f"a WattlawError ends a run that has all windows: {error}"
            if options["is_whole"]
            else None
        )
    if options["is_whole"] and done.status != "done":
        return f"a run with all windows is {done.status}: {done.reason}"
    if done.status == "done":
        import pyarrow.parquet as pq

        pq.read_table(folder.epochs_path)
    return None


def slurm_texts(_: Sandbox, options: dict[str, Any]) -> str | None:
    """Read what Slurm's commands print."""
    from wattlaw.running.slurm import commands
    from wattlaw.running.slurm.attempt import queue_message
    from wattlaw.running.slurm.slurm_launcher import energy_accounts
    from wattlaw.running.slurm.submission import run_id_of

    text = options["text"]
    jobs = commands.parse_jobs(text)
    queue_message(jobs)
    for job in jobs:
        run_id_of(job.name, "00aa00aa")
    found = commands.parse_accounts(text)
    for account in energy_accounts(found).values():
        energy_j = account.energy_j
        if energy_j is not None and not (math.isfinite(energy_j) and energy_j > 0):
            return f"an energy that cannot be: {energy_j!r}"
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


def energy(_: Sandbox, options: dict[str, Any]) -> str | None:
    """Compute energies from damaged samples; verdict ok allows no wrong number."""
    import pyarrow as pa

    from wattlaw.measure.telemetry.window_energy import energy_of_windows
    from wattlaw.store.schema import SAMPLES, WINDOWS

    asked = [
        {
            "host": HOST,
            "start_ns": _START_NS + k * 2_000_000_000,
            "duration_s": 2.0,
            "phase": "train",
        }
        for k in range(3)
    ]
    rows = [
        {"host": HOST, "kind": "gpu", "power_source": "measured"} | row for row in options["rows"]
    ]
    facts = {(HOST, "GPU-0"): options["facts"]}
    table = pa.Table.from_pylist(asked, schema=WINDOWS)
    found = energy_of_windows(table, pa.Table.from_pylist(rows, schema=SAMPLES), facts).to_pylist()
    for row in found:
        energy_j, is_ok = row["gpu_energy_j"], row["energy_verdict"] == "ok"
        if energy_j is not None and not (math.isfinite(energy_j) and energy_j >= 0):
            return f"an energy that cannot be: {energy_j!r}, verdict {row['energy_verdict']}"
        if is_ok and energy_j is None:
            return "ok without energy: verdict ok, energy null"
        true_j = options["true_j"]
        if is_ok and abs(energy_j - true_j) > TOLERANCE * true_j:
            return (
                f"ok with a wrong energy, {options['damage']}: {energy_j:g} J, truly {true_j:g} J"
            )
    return None


def driver(sandbox: Sandbox, options: dict[str, Any]) -> str | None:
    """Read boards whose driver answers oddly, by the real meter and bindings."""
    import pynvml

    from fake_nvml import FakeGpus
    from wattlaw.common.errors import NotAvailable
    from wattlaw.measure.devices.meter import Target
    from wattlaw.measure.devices.nvidia.nvidia_meter import NvidiaMeter

    boards = FakeGpus(sandbox.boards_path)
    with boards.locked():
        for index, name, value in options["fields"]:
            with contextlib.suppress(OverflowError, TypeError):
                setattr(boards[index % len(boards)], name, value)
        for function, board, code, after in options["faults"]:
            with contextlib.suppress(RuntimeError):
                boards.fault(function, board, code=code, after_calls=after)
    try:
        meter = NvidiaMeter.open(Target(os.getpid(), 0.1))
    except NotAvailable as error:
        return None if "\n" not in str(error) else f"a message of several lines: {error!s:.200}"
    found = []
    try:
        for number in range(4):
            found += meter.read(last=number == 3)
        problems = meter.problems()
        is_fit = all(device.id.isprintable() for device in meter.devices())
    finally:
        meter.close()
        with contextlib.suppress(pynvml.NVMLError):
            for _ in range(8):
                pynvml.nvmlShutdown()
    for sample in found:
        for name in ("power_w", "energy_j", "sm_util", "mem_util", "temperature_c", "sm_clock_mhz"):
            number = getattr(sample, name)
            if number is not None and not math.isfinite(number):
                return f"a sample that cannot be: {name} = {number!r}"
            if number is not None and number < 0 and name != "temperature_c":
                return f"a negative sample: {name} = {number!r}"
    # The sampler refuses devices whose ids cannot be printed.
    is_well = not is_fit or all(text.isprintable() for text in problems)
    return None if is_well else f"an unprintable text: {ascii(problems)[:200]}"


PARSERS: dict[str, Callable[[Sandbox, dict[str, Any]], str | None]] = {
    one.__name__: one for one in (live_run, slurm_texts, site, saved_limits, energy, driver)
}
