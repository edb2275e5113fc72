"""The files that describe the cluster to Slurm, Munge and the name service."""

import random
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

USER, UID = "alice", 10001
CLUSTER = "wattlaw-test"
BASE = """\
ClusterName={cluster}
SlurmctldHost=controller(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket,cred_expire=5
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n/slurmd.log
SlurmctldDebug=verbose
SlurmdDebug=verbose
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/filetxt
JobCompLoc={folder}/jobcomp.txt
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
GresTypes=gpu
TopologyPlugin=topology/tree
PriorityType=priority/basic
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=2,bf_interval=2
JobRequeue=1
ReturnToService=2
MessageTimeout=5
TCPTimeout=2
"""
TIMES = {
    "SlurmctldTimeout": 10,
    "SlurmdTimeout": 5,
    "KillWait": 3,
    "InactiveLimit": 0,
    "MinJobAge": 300,
    "BatchStartTimeout": 5,
}


@dataclass(frozen=True)
class Settings:
    """How many hosts, and what Slurm is told about them.

    `options` are lines of slurm.conf, after and instead of those here (``Prolog``, ``KillWait``).
    """

    nodes: int = 4
    boards: int = 2
    cpus: int = 64
    grace_s: int = 10
    options: dict[str, object] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        return [f"node{k}" for k in range(1, self.nodes + 1)]

    def slurm_conf(self, folder: Path, ports: Sequence[int]) -> str:
        lines = [BASE.format(cluster=CLUSTER, folder=folder, ports=ports)]
        lines += [f"{key}={value}" for key, value in (TIMES | self.options).items()]
        lines += [
            f"NodeName={name} NodeHostname={name} NodeAddr=127.0.1.{k} Port={ports[k]}"
            f" CPUs={self.cpus} RealMemory=1000000 Gres=gpu:{self.boards} State=UNKNOWN"
            for k, name in enumerate(self.names, start=1)
        ]
        nodes = f"Nodes={','.join(self.names)} MaxTime=INFINITE State=UP OverSubscribe=NO"
        lines.append(
            f"PartitionName=normal {nodes} Default=YES DefaultTime=60"
            f" PriorityTier=1 GraceTime={self.grace_s}"
        )
        lines.append(f"PartitionName=urgent {nodes} DefaultTime=60 PriorityTier=10 PreemptMode=OFF")
        return "\n".join(lines) + "\n"

    def gres_conf(self, devices: Path) -> str:
        """Return gres.conf: each node's boards are device files."""
        names = ",".join(self.names)
        return "".join(
            f"NodeName={names} Name=gpu File={devices}/nvidia{i}\n" for i in range(self.boards)
        )

    def topology_conf(self) -> str:
        half = (self.nodes + 1) // 2
        leaves = [self.names[:half], self.names[half:]]
        lines = [
            f"SwitchName=leaf{i} Nodes={','.join(nodes)}"
            for i, nodes in enumerate(leaves, start=1)
            if nodes
        ]
        names = ",".join(line.split()[0].removeprefix("SwitchName=") for line in lines)
        return "\n".join([*lines, f"SwitchName=spine Switches={names}"]) + "\n"

    def hosts(self) -> str:
        """Return /etc/hosts: a node has an address of its own in 127/8, all of which is ours."""
        nodes = [f"127.0.1.{k} {name}" for k, name in enumerate(self.names, start=1)]
        return "\n".join(["127.0.0.1 localhost controller login1 login2", *nodes, ""])


def with_user(path: Path, line: str) -> str:
    return f"{path.read_text().rstrip()}\n{line}\n"


def free_ports(count: int) -> list[int]:
    """Return free ports below those that the kernel gives to clients, so that they stay free."""
    found: list[int] = []
    while len(found) < count:
        port = random.randint(15000, 30000)
        with socket.socket() as probe:
            if port not in found and probe.connect_ex(("127.0.0.1", port)):
                found.append(port)
    return found
