"""`wattlaw run`, `status` and `cancel` with jobs that run independently of them."""

import signal

from slurm.studies import RUN_S, finished, waiting


def test_after_a_killed_front_end_no_run_is_lost_or_repeated(cluster, desk):
    waiting(desk, repeats=2, slurm={"max_queued": 1})
    before = desk.submissions()
    with desk.running() as front:
        cluster.wait_for(lambda: desk.submissions() - before == 1, "a job", 90)
        front.send_signal(signal.SIGKILL)
        front.wait()
    told = desk.does("status", "store", "--json", host="login2").stdout
    desk.pauses(0)
    assert '"job": {"id"' in told
    ended = desk.runs(host="login2")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert desk.submissions() - before == 2
    assert [(one.status, one.attempts) for one in desk.records()] == [("done", 1)] * 2
    assert all(one.interruptions == () for one in desk.records())


def test_a_cancelled_job_fails_with_that_reason_and_others_continue(cluster, desk):
    waiting(desk, repeats=2)
    with desk.running() as front:
        desk.wait_begun()
        victim = next(one for one in desk.records() if one.site)
        job = victim.site.job_id
        cluster.run("scancel", job)
        cluster.wait_state(job, "CANCELLED")
        desk.pauses(0)
        output, _ = front.communicate(timeout=RUN_S)
    assert front.returncode == 1, output
    found = {one.run_id: one for one in desk.records()}
    assert found[victim.run_id].status == "failed"
    assert found[victim.run_id].reason == f"job {job} was cancelled"
    (other,) = [one for one in found.values() if one.run_id != victim.run_id]
    assert (other.status, other.attempts) == ("done", 1)


def test_the_front_end_waits_for_a_scheduler_that_does_not_respond(cluster, desk):
    waiting(desk)
    with desk.running() as front:
        desk.wait_begun()
        cluster.stop_controller()
        before = len(cluster.calls("squeue"))
        asked_twice = lambda: len(cluster.calls("squeue")) > before + 1  # noqa: E731
        cluster.wait_for(asked_twice, "two calls without an answer", 60)
        assert front.poll() is None
        cluster.start_controller()
        desk.pauses(0)
        output = finished(front)
    assert "does not respond" in output
    record = desk.record()
    assert (record.status, record.attempts) == ("done", 1)


def test_cancel_ends_jobs_and_front_end_and_the_next_run_continues_them(cluster, desk):
    waiting(desk, repeats=2, slurm={"max_queued": 1})
    with desk.running() as front:
        desk.wait_begun()
        told = desk.does("cancel", "store", host="login2")
        output, _ = front.communicate(timeout=RUN_S)
    assert told.returncode == 0, told.stderr
    assert "1 job(s) cancelled" in told.stdout
    assert front.returncode == 1
    assert "wattlaw cancel" in output
    assert not cluster.run("squeue", "--noheader")
    assert "done" not in {one.status for one in desk.records()}
    desk.pauses(0)
    before = desk.submissions()
    assert desk.runs().returncode == 0
    assert desk.submissions() - before == 2
    assert {one.status for one in desk.records()} == {"done"}
