"""The commands for each host, and for each of its ranks, with their purpose."""

from typing import NamedTuple

# Processes with RANK in their environment, of the same job as this shell if Slurm started it, except a rank's children, such as
# workers of a data loader.
RANKS = r"""for e in /proc/[0-9]*/environ; do p=${e#/proc/}; p=${p%/environ}
r=$(tr '\0' '\n' <"$e" 2>/dev/null | sed -n 's/^RANK=//p' | head -n 1); [ -n "$r" ] || continue
[ -z "$SLURM_JOB_ID" ] || tr '\0' '\n' <"$e" 2>/dev/null | grep -qx "SLURM_JOB_ID=$SLURM_JOB_ID" || continue
u=$(sed -n 's/^PPid:[^0-9]*//p' "/proc/$p/status" 2>/dev/null)
q=$(tr '\0' '\n' <"/proc/$u/environ" 2>/dev/null | sed -n 's/^RANK=//p' | head -n 1); [ "$q" = "$r" ] || echo "$r $p"
done; true"""


class Probe(NamedTuple):
    """A command of the shell, and the purpose of its output.  {pid}: of a rank."""

    name: str
    command: str
    purpose: str


OF_A_RANK = (
    # By the PATH of the rank, whose environment has py-spy more likely than a shell's. A process in a wait that nothing interrupts can't
    # be stopped, so py-spy would wait with it: then its stack is read without stopping it.
    Probe(
        "stack",
        "PATH=$(tr '\\0' '\\n' </proc/{pid}/environ | sed -n 's/^PATH=//p'):$PATH; "
        "stop=$(grep -q '^State:.D' /proc/{pid}/status && echo --nonblocking); timeout 30 py-spy dump --pid {pid} $stop",
        "the line that the rank is at (needs py-spy, and the right to trace)",
    ),
    Probe(
        "wait",
        'echo "wchan $(cat /proc/{pid}/wchan)"; cat /proc/{pid}/stack 2>/dev/null; true',
        "the kernel's function that the process waits in",
    ),
    Probe("status", "cat /proc/{pid}/status", "whether the process runs, sleeps or is stopped"),
)
OF_A_HOST = (
    Probe("clock", "date '+clock %F %T %z'", "the zone of its times"),
    Probe(
        "ras",
        "a=${NCCL_RAS_ADDR:-$(cat /proc/[0-9]*/environ 2>/dev/null | tr '\\0' '\\n' | sed -n 's/^NCCL_RAS_ADDR=//p' | head -n 1)}; a=$(echo ${a:-localhost:28028} | tr -d '[]'); "
        "timeout 30 bash -c 'exec 3<>/dev/tcp/$0/$1 && printf \"set format json\\nverbose status\\n\" >&3 && cat <&3' ${a%:*} ${a##*:}",
        "the operation counts of NCCL's RAS service",
    ),
    Probe("kernel", "dmesg -T 2>/dev/null || journalctl -k --no-pager -n 5000", "Xids, killed processes, links"),
    Probe("gpu", "nvidia-smi -q", "errors and states of the GPUs"),
    Probe("fabric", "journalctl -u nvidia-fabricmanager --no-pager -n 200", "whether NVLink's switches were set up"),
    Probe("memory", "free -b; df /dev/shm; ipcs -m", "memory that is shared, and that no process may have"),
    Probe("rdma", "rdma statistic show", "errors of InfiniBand, RoCE and EFA"),
    Probe(
        "network",
        'for d in /sys/class/net/*/statistics; do echo "$d"; grep -H . "$d"/*errors "$d"/*dropped; done',
        "errors of network interfaces",
    ),
)
