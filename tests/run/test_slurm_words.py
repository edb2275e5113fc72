"""The arguments of Slurm's commands and the parsing of their output, without a Slurm."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from made_runs import made_record, made_spec
from wattlaw.cli.main import main
from wattlaw.common.errors import NotAvailable
from wattlaw.running.launcher import ResourcesBusy
from wattlaw.running.slurm import SlurmLauncher, commands
from wattlaw.running.slurm.commands import Job, Unreachable
from wattlaw.running.slurm.submission import (
    MAX_INTERRUPTIONS,
    SETUP_FAILED,
    by_run,
    existing_tag,
    interrupted,
    job_name,
    sbatch_arguments,
    store_tag,
    write_script,
)
from wattlaw.store.record import RunRecord
from wattlaw.store.run_folder import RunFolder
from wattlaw.study.launching import ALLOWED, Launch, Slurm, parse_time_limit
from wattlaw.study.model import RunSpec
from wattlaw.study.setting import Setting

POLICY = (
    "Batch job submission failed: Job violates accounting/QOS policy (job submit limit, user's "
    "size and/or time limits)"
)
WIDTHS = (20, 24, 12, 64, 60)


def spec_of(gpus: int = 8, nodes: int = 2, **setting: object) -> RunSpec:
    setting = Setting(gpus=gpus, local_batch=16, **setting)
    return made_spec(setting, launch_kind="slurm", nodes=nodes)


def launch_of(**slurm: object) -> Launch:
    return Launch(kind="slurm", gpus_per_node=4, slurm=Slurm(**slurm))


def record_of(run_id: str = "0123456789abcdef", **changes: object) -> RunRecord:
    told = {"status": "running", "attempts": 1, **changes}
    return made_record(run_id, spec_of(), **told)


def words_for(tmp_path: Path, spec: RunSpec, **slurm: object) -> list[str]:
    return sbatch_arguments(spec, RunFolder(tmp_path / "r"), launch_of(**slurm), "the-name")


def test_a_job_requests_nodes_workers_and_time_and_can_be_requeued(tmp_path):
    slurm = {"gres": "gpu:a100", "cpus_per_worker": 8, "time": "02:00:00", "warn_s": 300}
    options = {"partition": "gpu; rm -rf /", "exclusive": True, "overcommit": False, "nice": -5}
    folder = RunFolder(tmp_path / "100%j")
    words = sbatch_arguments(spec_of(), folder, launch_of(**slurm, options=options), "the-name")
    driver = [sys.executable, "-P", "-m", "wattlaw.running.slurm.driver", str(folder.path)]
    assert words == [
        *("--job-name=the-name", "--nodes=2", "--ntasks-per-node=1", "--requeue"),
        *("--signal=B:USR1@300", "--open-mode=append", f"--chdir={Path.cwd()}"),
        f"--output={tmp_path}/100%%j/log.txt",  # not Slurm's replacement symbol
        *("--gres=gpu:a100:4", "--cpus-per-task=32", "--time=02:00:00"),
        *("--partition=gpu; rm -rf /", "--exclusive", "--nice=-5"),
        *(str(folder.path / "job.sh"), *driver),
    ]
    plain = words_for(tmp_path, spec_of(), gres=None)
    assert not [word for word in plain if word.startswith(("--gres", "--time", "--cpus", "--comm"))]


def test_a_power_cap_is_in_the_comment_only_with_limits_prolog(tmp_path):
    capped = spec_of(power_limit_w=250.0)
    assert "--comment=mine" in words_for(tmp_path, capped, options={"comment": "mine"})
    asked = words_for(tmp_path, capped, options={"comment": "mine"}, limits="prolog")
    (comment,) = [word for word in asked if word.startswith("--comment=")]
    assert "power_w=250" in comment
    assert comment.endswith(" mine")
    free = words_for(tmp_path, spec_of(), limits="prolog")
    assert not [word for word in free if word.startswith("--comment")]


@pytest.mark.parametrize(
    ("gpus", "nodes", "reason"),
    [
        (8, 2, None),
        (8, 4, None),
        (7, 2, "7 gpus on 2 nodes; allowed: the same number on each node (launch.gpus_per_node)"),
        (8, 1, "needs 8 GPUs on each node; launch.gpus_per_node is 4"),
    ],
)
def test_uneven_nodes_and_more_workers_than_a_node_has_gpus_are_refused(
    tmp_path, gpus, nodes, reason
):
    launcher = SlurmLauncher(launch_of(), tmp_path)
    assert launcher.unsupported_reason(spec_of(gpus=gpus, nodes=nodes)) == reason


@pytest.mark.parametrize(
    ("setup", "code", "shown", "error"),
    [
        (("export SEEN='a {b} %c'", "false || true", "cd /"), 0, "a {b} %c / word\n", ""),
        (
            ("true", "nosuch load", "cd /"),
            SETUP_FAILED,
            "",
            "wattlaw: launch.slurm.setup[1] ended with exit code 127",
        ),
    ],
)
def test_the_batch_script_runs_the_driver_unless_a_line_of_the_setup_fails(
    tmp_path, setup, code, shown, error
):
    write_script(RunFolder(tmp_path), launch_of(setup=setup))
    line = ["bash", str(tmp_path / "job.sh"), "bash", "-c", 'echo "$SEEN $PWD $0"', "word"]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (code, shown)
    assert error in done.stderr


# Options of sbatch that the launcher sets, abbreviations that its getopt_long would take, traps.
REFUSED = (
    *("job-name", "nodes", "output", "array", "wrap", "parsable", "export", "uid", "prolog"),
    *("wra", "wr", "exp", "w", "o", "J", "-wrap", "--wrap", "wrap=id", "partition=x --wrap", ":"),
    *("", " ", "mem ", "Partition", "part\u0131tion", "partition\n", "mem\u200b", "x" * 5000),
)


@given(
    st.sampled_from((*ALLOWED, *REFUSED)) | st.text(max_size=30),
    st.text(max_size=30) | st.integers() | st.booleans(),
)
def test_an_option_is_refused_or_becomes_one_argument_of_sbatch(tmp_path_factory, option, value):
    folder = tmp_path_factory.getbasetemp()
    try:
        words = words_for(folder, spec_of(), options={option: value})
    except ValidationError:
        return
    plain = words_for(folder, spec_of())
    added = words[len(plain) - 6 : -6]
    assert words == [*plain[:-6], *added, *plain[-6:]]
    assert [word.partition("=")[0] for word in added] == [f"--{option}"] * (value is not False)
    assert option in ALLOWED
    assert all(word.isprintable() for word in added)


@pytest.mark.parametrize(
    ("time", "expected_s"),
    [
        *(("30", 1800), ("90:30", 5430), ("02:00:00", 7200), ("1-12", 129600)),
        *(("1-12:30", 131400), ("2-00:00:05", 172805)),
    ],
)
def test_a_time_limit_is_parsed_as_slurm_parses_it(time, expected_s):
    assert parse_time_limit(time) == expected_s


def test_without_slurm_a_run_ends_with_one_line_and_exit_code_3(
    write_study, tmp_path, monkeypatch, capsys
):
    monkeypatch.setenv("PATH", str(tmp_path))
    path = write_study(launch={"kind": "slurm", "gpus_per_node": 1})
    assert main(["run", str(path), "--store", str(tmp_path / "store")]) == 3
    (line,) = capsys.readouterr().err.splitlines()
    assert "Slurm's commands (squeue, sbatch) are not installed here" in line
    assert not (tmp_path / "store").exists()


def queue_line(*values: str) -> str:
    return "".join(value.ljust(width) for value, width in zip(values, WIDTHS, strict=True))


FIELD = st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=11)


@given(st.lists(st.tuples(FIELD.filter(bool), FIELD, FIELD, FIELD, FIELD), max_size=5))
def test_columns_of_squeue_are_parsed(rows):
    found = commands.parse_jobs("\n".join(queue_line(*row) for row in rows))
    read = [(job.id, job.state, job.name, job.reason) for job in found]
    assert read == [(a, b, d, e) for a, b, _, d, e in rows]


def test_exit_codes_of_squeue_are_parsed():
    (job,) = commands.parse_jobs(queue_line("12", "FAILED", str(75 << 8), "n", "NonZeroExitCode"))
    assert (job.exit_code, job.signal, job.is_over, job.is_queued) == (75, 0, True, False)
    (killed,) = commands.parse_jobs(queue_line("12", "FAILED", "10", "n", "NonZeroExitCode"))
    assert (killed.exit_code, killed.signal) == (0, 10)


def command(folder: Path, name: str, text: str, code: int = 0) -> None:
    path = folder / name
    out = ">&2 " if code else ""
    words = f'echo "$*" >> {folder}/{name}.words\necho "$SLURM_JOB_ID" >> {folder}/{name}.env\n'
    body = f"cat <<'END' {out}\n{text}\nEND\nexit {code}\n"
    path.write_text(f"#!/bin/bash\n{words}{body}")
    path.chmod(0o755)


@pytest.fixture
def bin_(tmp_path, monkeypatch):
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return folder


OPTIONS_OF_OUTER_JOBS = (
    *("SBATCH_GRES", "SBATCH_EXCLUSIVE", "SBATCH_TIMELIMIT", "SBATCH_EXPORT", "SRUN_CPUS_PER_TASK"),
    *("SRUN_EXPORT_ENV", "SLURM_CPU_BIND", "SQUEUE_PARTITION", "SQUEUE_STATES", "SCANCEL_STATE"),
)


@pytest.mark.parametrize("is_in_job", [True, False])
def test_options_in_the_environment_do_not_reach_our_commands(bin_, monkeypatch, is_in_job):
    (bin_ / "sbatch").write_text(f"#!/bin/bash\nenv > {bin_}/env\necho '7;cluster'\n")
    (bin_ / "sbatch").chmod(0o755)
    for name in (*OPTIONS_OF_OUTER_JOBS, "SBATCH_ACCOUNT", "SLURM_CONF"):
        monkeypatch.setenv(name, "outer")
    if is_in_job:
        monkeypatch.setenv("SLURM_JOB_ID", "1")
    assert commands.submit([]) == "7"
    found = dict(line.split("=", 1) for line in (bin_ / "env").read_text().splitlines())
    assert not found.keys() & {*OPTIONS_OF_OUTER_JOBS, "SLURM_JOB_ID"}
    assert found["SLURM_CONF"] == "outer"
    assert ("SBATCH_ACCOUNT" in found) is not is_in_job  # a login shell's default account


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ("sbatch: error: Unable to contact slurm controller (connect failure)", Unreachable),
        ("sbatch: error: Batch job submission failed: Socket timed out on send/recv", Unreachable),
        ("error: QOSMaxSubmitJobPerUserLimit", ResourcesBusy),
        (f"error: AssocMaxSubmitJobLimit\nsbatch: error: {POLICY}", ResourcesBusy),
        (f"error: QOSMaxWallDurationPerJobLimit\nsbatch: error: {POLICY}", NotAvailable),
        ("sbatch: error: invalid partition specified: nope", NotAvailable),
        ("Requested node configuration is not available", NotAvailable),
        ("", Unreachable),  # without a job id
        (";cluster", Unreachable),
    ],
)
def test_errors_of_sbatch_are_permanent_or_temporary_or_no_connection(bin_, told, expected):
    is_error = told not in ("", ";cluster")
    command(bin_, "sbatch", told, code=1 if is_error else 0)
    with pytest.raises(expected) as caught:
        commands.submit(["--nodes=1"])
    assert (bin_ / "sbatch.words").read_text() == "--parsable --nodes=1\n"
    if is_error:
        assert told.splitlines()[-1].split(": ")[-1] in str(caught.value)


def test_the_tag_of_a_store_identifies_its_jobs(tmp_path):
    assert existing_tag(tmp_path) is None
    tag = store_tag(tmp_path)
    assert store_tag(tmp_path) == existing_tag(tmp_path) == tag
    other = tmp_path / "other"
    other.mkdir()
    assert store_tag(other) != tag
    name = job_name(tag, "0123456789abcdef")
    jobs = [Job("1", "RUNNING", name), Job("2", "RUNNING", "somebody-elses")]
    assert by_run(jobs, tag) == {"0123456789abcdef": jobs[0]}
    assert by_run(jobs, store_tag(other)) == {}


def test_an_interrupted_run_is_repeated_until_it_makes_no_progress(tmp_path):
    folder, record = RunFolder(tmp_path), record_of()
    for attempt in range(1, MAX_INTERRUPTIONS):
        record = interrupted(record.model_copy(update={"attempts": attempt}), folder, "node lost")
        assert record.status == "planned"
    last = record.model_copy(update={"attempts": MAX_INTERRUPTIONS})
    failed = interrupted(last, folder, "node lost")
    assert failed.status == "failed"
    assert failed.reason.startswith(
        f"interrupted {MAX_INTERRUPTIONS} times in a row without a checkpoint"
    )
    (tmp_path / "live" / str(MAX_INTERRUPTIONS)).mkdir(parents=True)
    (tmp_path / "live" / str(MAX_INTERRUPTIONS) / "checkpointed.json").write_text("{}")
    repeated = interrupted(last, folder, "node lost")
    assert repeated.status == "planned"
    assert [one.has_progress for one in repeated.interruptions] == [False, False, True]
