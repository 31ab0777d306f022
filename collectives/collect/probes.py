"""The commands for each host, and for each of its ranks, with their purpose."""

from typing import NamedTuple

# A line of rank, number, start and job for each process with RANK in its environment, of the same job as this shell if Slurm started it,
# except the shell around a rank and a rank's children, such as workers of a data loader. A script that srun or mpirun starts may set RANK
# itself, which shows in no environment: then Python's processes with the launcher's own number count.
RANKS = r"""value() { tr '\0' '\n' 2>/dev/null <"/proc/$1/environ" | sed -n "s/^$2=//p" | head -n 1; }
is_rank() { case "$name:$(readlink "/proc/$1/exe")" in RANK:*sh) false;; RANK:*) ;; *python*) ! tr '\0' ' ' <"/proc/$1/cmdline" | grep -q 'torchrun\|torch\.distributed\|collectives collect';; *) false;; esac; }
for name in RANK SLURM_PROCID PMI_RANK OMPI_COMM_WORLD_RANK; do
for e in $(grep -l "$name=" /proc/[0-9]*/environ 2>/dev/null); do p=${e#/proc/}; p=${p%/environ}
r=$(value "$p" $name); [ -n "$r" ] && is_rank "$p" || continue
[ -z "$SLURM_JOB_ID" ] || [ "$(value "$p" SLURM_JOB_ID)" = "$SLURM_JOB_ID" ] || continue
u=$(sed -n 's/^PPid:[^0-9]*//p' "/proc/$p/status" 2>/dev/null)
[ "$(value "$u" $name)" = "$r" ] && is_rank "$u" || echo "$r $p $(sed 's/.*) //' "/proc/$p/stat" | cut -d ' ' -f 20) \
$(value "$p" MASTER_ADDR):$(value "$p" MASTER_PORT):$(value "$p" TORCHELASTIC_RESTART_COUNT)"
done | grep . && break; done; true"""


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
