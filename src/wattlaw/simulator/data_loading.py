"""The input of a rank: its loader processes, and the shared storage."""

from wattlaw.simulator.job import SimulatedJob

#: The most loader processes of a rank by default, as in ``workloads.data_loading``.
MOST_PROCESSES = 8


def loader_processes(job: SimulatedJob) -> int:
    """Return the loader processes of a rank: as set, or as ``workloads.data_loading`` has it."""
    if job.loader_workers is not None:
        return job.loader_workers
    per_node = min(job.gpus, job.gpus_per_node or job.cluster.node.gpus)
    spare = job.cluster.node.cores // per_node - 1
    return max(0, min(MOST_PROCESSES, spare)) if job.profile.reads_files else 0


def input_s(job: SimulatedJob, local: float) -> float:
    """Return the time of a step's input, limited by the cores or by the storage."""
    cores_s, storage_s = local * job.profile.input_cpu_s_per_sample, _storage_s(job, local)
    workers = loader_processes(job)
    return max(cores_s / workers, storage_s) if workers else cores_s + storage_s


def _storage_s(job: SimulatedJob, local: float) -> float:
    """Return the time to read the samples of a step, of all ranks, from the shared storage."""
    if not job.profile.reads_files:
        return 0.0  # the data set is in memory
    stored = job.gpus * local * job.profile.stored_bytes_per_sample
    return stored / (job.cluster.storage_gb_s * 1e9)


def first_input_s(job: SimulatedJob, local: float) -> float:
    """Return the wait for the first batch of an epoch, which one process of each rank prepares."""
    if not loader_processes(job):
        return 0.0  # the rank prepares every batch itself
    return local * job.profile.input_cpu_s_per_sample + _storage_s(job, local)
