"""The input of a rank: its loader processes, and the storage that all nodes share."""

from wattlaw.simulator.job import SimulatedJob

#: As ``workloads.data_loading``: more loader processes per rank are not started unless asked for.
MOST_PROCESSES = 8


def loader_processes(job: SimulatedJob) -> int:
    """Return the loader processes of a rank: as set, or as ``workloads.data_loading`` chooses."""
    if job.loader_workers is not None:
        return job.loader_workers
    per_node = min(job.gpus, job.gpus_per_node or job.cluster.node.gpus)
    spare = job.cluster.node.cores // per_node - 1
    return max(0, min(MOST_PROCESSES, spare)) if job.profile.reads_files else 0


def input_s(job: SimulatedJob, local: float) -> float:
    """Return how long the input of a step takes: the cores' share, or the storage's."""
    cores_s, storage_s = local * job.profile.input_cpu_s_per_sample, _storage_s(job, local)
    workers = loader_processes(job)
    return max(cores_s / workers, storage_s) if workers else cores_s + storage_s


def _storage_s(job: SimulatedJob, local: float) -> float:
    """Return how long all ranks' samples of a step take from the storage that they share."""
    if not job.profile.reads_files:
        return 0.0  # in memory since the start
    stored = job.gpus * local * job.profile.stored_bytes_per_sample
    return stored / (job.cluster.storage_gb_s * 1e9)


def first_input_s(job: SimulatedJob, local: float) -> float:
    """Return the wait for an epoch's first batch, which one process of each rank makes alone."""
    if not loader_processes(job):
        return 0.0  # the rank makes every batch itself, the first as the others
    return local * job.profile.input_cpu_s_per_sample + _storage_s(job, local)
