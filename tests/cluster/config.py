"""The configuration of the test cluster, as text: no processes, no files."""

from __future__ import annotations

import os
import socket
from pathlib import Path

NODES = ("n1", "n2", "n3", "n4")
FEW_JOBS = 3
"""MaxSubmitJobsPerUser of the QoS `few`."""
CLUSTER_NAME = "gnnhpc-test"
MUNGE_SOCKET = "munge.socket"
DATABASE_SOCKET = "mariadb.socket"


def slurm_conf(root: Path, ctld_port: int, dbd_port: int, *node_ports: int) -> str:
    """slurm.conf: four nodes of two CPUs, and partitions for the ways a job can be interrupted."""
    host = socket.gethostname().split(".")[0]
    nodes = "\n".join(
        f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} "
        "CPUs=2 Boards=1 SocketsPerBoard=1 CoresPerSocket=2 ThreadsPerCore=1 RealMemory=16000"
        for name, port in zip(NODES, node_ports, strict=True)
    )
    return f"""\
ClusterName={CLUSTER_NAME}
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={ctld_port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={root}/{MUNGE_SOCKET}
StateSaveLocation={root}/state
SlurmdSpoolDir={root}/spool/%n
SlurmctldPidFile={root}/slurmctld.pid
SlurmdPidFile={root}/slurmd-%n.pid
SlurmctldDebug=info
SlurmdDebug=info
MailProg=/bin/true

ProctrackType=proctrack/linuxproc
TaskPlugin={"task/affinity" if can_bind() else "task/none"}
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=task=1
JobAcctGatherParams=OverMemoryKill
SlurmdParameters=config_overrides

AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort={dbd_port}
AccountingStoragePass={root}/{MUNGE_SOCKET}
AccountingStorageEnforce=limits,qos

# Start what can start at once; a test should not wait for a scheduling cycle.
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1,preempt_send_user_signal
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
DefMemPerCPU=4000
MaxArraySize=1001
MaxJobCount=2000

PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
KillWait=5
MessageTimeout=30
SlurmdTimeout=120
ReturnToService=2

{nodes}

PartitionName=DEFAULT Nodes=n[1-4] DefaultTime=10:00 MaxTime=60:00 PriorityTier=10 PreemptMode=OFF
PartitionName=main Default=YES
PartitionName=short DefaultTime=1:00 MaxTime=1:00
PartitionName=preemptible PreemptMode=REQUEUE GraceTime=20
PartitionName=urgent PriorityTier=20
PartitionName=closed State=DOWN
"""


def can_bind() -> bool:
    """Whether the kernel lets a process choose each of the CPUs that a node is said to have."""
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {0})
        os.sched_setaffinity(0, {1})
    except OSError:
        return False
    finally:
        os.sched_setaffinity(0, before)
    return True


def slurmdbd_conf(root: Path, dbd_port: int, password: str) -> str:
    """slurmdbd.conf: accounting in a database that only this cluster can reach."""
    return f"""\
AuthType=auth/munge
AuthInfo=socket={root}/{MUNGE_SOCKET}
DbdHost=localhost
DbdPort={dbd_port}
SlurmUser=root
DebugLevel=info
PidFile={root}/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=slurm
StoragePass={password}
StorageLoc=slurm_acct_db
CommitDelay=0
"""


def database_setup(password: str) -> str:
    """SQL run when the database starts: an empty accounting database and its user."""
    return (
        "CREATE DATABASE IF NOT EXISTS slurm_acct_db;\n"
        f"CREATE OR REPLACE USER 'slurm'@'localhost' IDENTIFIED BY '{password}';\n"
        "GRANT ALL ON slurm_acct_db.* TO 'slurm'@'localhost';\n"
    )


DATABASE_OPTIONS = (
    "--user=root",
    "--skip-networking",
    "--innodb-buffer-pool-size=16M",
    "--innodb-log-file-size=4M",
    "--innodb-flush-log-at-trx-commit=0",
    "--innodb-doublewrite=0",
    "--aria-log-file-size=8M",
    "--performance-schema=OFF",
)
"""A small database that need not survive a power cut: it lives as long as the tests."""
