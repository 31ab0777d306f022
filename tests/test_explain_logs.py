"""Logs and reports, explained: the watchdog's lines, NCCL's own log, nccl-tests, NCCL Inspector.

Lines are real ones, from the issues that are named beside them, or put together from such lines.
"""

import json
import textwrap

import pytest

from collectives.explain import load
from collectives.watch.explain.command import explain
from tests import ROOT
from tests.corpus import dumps
from tests.corpus.dumps import STOP, WORLD, Do, Played

# The form of torch 2.4 to 2.11, as in https://github.com/OpenRLHF/OpenRLHF/issues/1126
WORK = "[rank{r}]:[E901 05:20:03.123992144 ProcessGroupNCCL.cpp:632] [Rank {r}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={seq}, OpType={op}, NumelIn={n}, NumelOut={n}, Timeout(ms)=600000) ran for 600020 milliseconds before timing out."
STATUS = "[rank{r}]:[E901 05:20:03.124073319 ProcessGroupNCCL.cpp:2271] [PG ID 0 PG GUID 0(default_pg) Rank {r}]  failure detected by watchdog at work sequence id: {seq} PG status: last enqueued work: {queued}, last completed work: {done}"
SIGNAL = "[rank{r}]:[E901 05:20:03.118859045 ProcessGroupNCCL.cpp:1746] [PG ID 0 PG GUID 0(default_pg) Rank {r}] Received a dump signal due to a collective timeout from  rank 6 and we will try our best to dump the debug info. Last enqueued NCCL work: {queued}, last completed NCCL work: {done}.This is most likely caused by incorrect usages"


def lines(rank: int, seq: int, queued: int, op: str = "ALLREDUCE", n: int = 1) -> str:
    return "\n".join(
        [WORK.format(r=rank, seq=seq, op=op, n=n), STATUS.format(r=rank, seq=seq, queued=queued, done=seq - 1)]
    )


def said(tmp_path, *texts: str) -> str:
    tmp_path.mkdir(exist_ok=True)
    for number, text in enumerate(texts):
        (tmp_path / f"stderr-{number}.log").write_text(f"Epoch 3: loss 1.2\n{text}\n")
    return explain(tmp_path)


NCCL = ROOT / "tests" / "corpus" / "nccl"  # of torch 2.11 and NCCL 2.28.9 on one H200, left by tests/gpu


def test_logs_of_hangs_that_nccl_ran_into():
    told = explain(NCCL / "absent.log")
    assert told.startswith(
        "Rank 1 holds up the other rank: it has not made all_reduce #2.\nRank 0 is waiting in it, for at "
    ), told
    assert "Rank 1's last call is call #1.\n" in told
    told = explain(NCCL / "stuck.log")
    assert told.startswith("No rank lacks a call: ranks 0 and 1 have made all_reduce #2, and it has not ended."), told
    assert "for at least 14.9 s, with 4 elements, at stuck, job.py:86" in told  # 10 s of the limit, 5 of the watchdog's
    told = explain(NCCL / "shapes.log")
    failed = "No rank lacks a call: NCCL itself failed on rank 0, in all_reduce #1 or a later one: message truncated : "
    assert told.startswith(f"{failed}receiving 524288 bytes instead of 65536. Usually ranks pass different sizes: "), (
        told
    )
    assert "look below the program" not in told
    assert "processes on" not in told  # of its own log, there is nothing


def test_the_log_of_a_job_over_sockets():
    told = explain(NCCL / "info.log")
    assert told.startswith("NCCL 2.28.9+cuda13.0: 2 processes on 1 host, the largest communicator of 2 ranks."), told
    assert "8 by NET/Socket" in told


def test_a_rank_that_queued_fewer_calls_than_the_one_that_timed_out(tmp_path):
    others = [lines(r, 460631, 460635) for r in (0, 1, 3)]
    told = said(tmp_path, *others, SIGNAL.format(r=2, queued=460630, done=460630))
    assert told.startswith("Rank 2 holds up the other 3: it has not made all_reduce #460631.\n"), told
    assert "Ranks 0, 1 and 3 are waiting in it, for at least 600 s, with 1 element." in told


def test_another_call_at_the_same_number(tmp_path):
    told = said(tmp_path, *[lines(r, 17, 17, "ALLREDUCE" if r else "_ALLGATHER_BASE", 80) for r in range(4)])
    assert told.startswith(
        "Rank 0 holds up the other 3: in call #17, rank 0 calls all_gather_single, and ranks 1, 2 and 3 call all_reduce."
    )


def test_all_have_queued_it(tmp_path):
    told = said(tmp_path, "\n".join(lines(r, 78, 79, "BROADCAST", 80) for r in range(3)))
    assert told.startswith("No rank lacks a call: all 3 ranks have made broadcast #78, and it has not ended.")


def test_a_rank_that_has_queued_it_and_has_not_timed_out_itself(tmp_path):
    others = "\n".join(lines(r, 78, 78, "BROADCAST", 80) for r in (0, 1))
    told = said(tmp_path, others, SIGNAL.format(r=2, queued=78, done=77))
    assert told.startswith("No rank lacks a call: all 3 ranks have made broadcast #78, and it has not ended.")


def test_ranks_of_which_the_log_says_nothing(tmp_path):
    told = said(tmp_path, "\n".join(lines(r, 78, 79, "BROADCAST", 80) for r in (1, 2, 3, 5, 6, 7)))
    assert told.startswith(
        "Ranks 0 and 4 may hold up the other 6: there is no dump of them, and no watchdog message in a log"
    )


def test_the_only_rank_that_reports_no_timeout(tmp_path):
    told = said(tmp_path, "\n".join(lines(r, 4, 4, "BROADCAST", 112) for r in range(1, 8)))
    assert "Each rank in that call has reported its timeout. Rank 0 alone has not: it never came to" in told, told


@pytest.mark.parametrize("op, empty, root", [("GATHER", "Out", "destination"), ("SCATTER", "In", "source")])
def test_the_root_of_a_call_is_another_rank(op, empty, root, tmp_path):
    told = said(tmp_path, lines(1, 46, 46, op, 28).replace(f"Numel{empty}=28", f"Numel{empty}=0"))
    assert told.startswith(f"Rank 1 timed out in {op.lower()} #46 after 600 s"), told
    assert f" no elements there, so some other rank is the {root}: look for its log first." in told
    assert "some other rank" not in said(tmp_path / "both", lines(1, 46, 46, op, 28))


def test_the_form_of_torch_2_1_and_a_stack(tmp_path):
    # https://github.com/hiyouga/LlamaFactory/issues/6269
    old = """[rank0]:[E1206 18:44:12 ProcessGroupNCCL.cpp:607] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7753, OpType=_REDUCE_SCATTER_BASE, NumelIn=544997376, NumelOut=68124672, Timeout(ms)=600000) ran for 600061 milliseconds before timing out.
[rank0]:[E1206 18:44:12 ProcessGroupNCCL.cpp:1664] [PG 1 Rank 0] Exception (either an error or timeout) detected by watchdog at work: 7753, last enqueued NCCL work: 7755, last completed NCCL work: 7752.
[rank0]:[E1206 18:44:12 ProcessGroupNCCL.cpp:801] Stack trace of the failed collective: 
#0 reduce_scatter_tensor from /env/site-packages/torch/distributed/distributed_c10d.py:4000
#1 backward from /job/train.py:33"""
    told = said(tmp_path, old, "[rank1]: nothing of the watchdog's")
    assert "reduce_scatter_single #7753 of group 1" in told.splitlines()[0]
    assert "544,997,376 elements, at backward, train.py:33" in told


@pytest.mark.parametrize("group", ["1", "0"])
def test_a_rank_that_is_heard_of_alone_is_waiting(group, tmp_path):
    """It has timed out: never is nobody known to be waiting, and nobody is accused for being left out of the files."""
    status = f"[rank0]:[E1206 18:44:12 ProcessGroupNCCL.cpp:1664] [PG {group} Rank 0] Exception (either an error or timeout) detected by watchdog at work: 7753, last enqueued NCCL work: 7755, last completed NCCL work: 7752."
    told = said(tmp_path, f"{WORK.format(r=0, seq=7753, op='_REDUCE_SCATTER_BASE', n=8)}\n{status}")
    where = " of group 1" * (group == "1")
    assert told.startswith(
        f"Rank 0 timed out in reduce_scatter_single #7753{where} after 600 s, with 8 elements; #7752 had completed.\n"
    ), told
    assert (
        "Only rank 0 is heard of in these logs, and the job has more ranks" in told
        and 'grep -h "ProcessGroupNCCL"' in told
    )
    for wrong in ("none is known to be waiting", "hold up", "died", "No rank lacks"):
        assert wrong not in told, told


def test_logs_of_few_ranks_accuse_none_of_those_between(tmp_path):
    told = said(tmp_path, lines(0, 78, 79), lines(3, 78, 79))
    assert told.startswith(
        "Ranks 0 and 3 timed out in all_reduce #78 after 600 s, with 1 element; #77 had completed."
    ), told
    assert "hold up" not in told and "No file reports how many ranks the job has: there may be more than 4." in told


def test_numbers_that_cannot_belong_to_one_call(tmp_path):
    told = said(
        tmp_path, lines(0, 420, 426, "_REDUCE_SCATTER_BASE", 8208384), lines(1, 423, 424, "_REDUCE_SCATTER_BASE", 64)
    )
    first = "The calls of ranks 0 and 1 don't belong together: rank 0 is waiting in reduce_scatter_single #420, while rank 1 is already in reduce_scatter_single #423."
    assert told.startswith(first), told
    assert (
        "so the sequences parted earlier" in told
        and "look below the program" not in told
        and "fits together" not in told
    )
    # A root may be ahead of the ranks that it sends to.
    assert "parted" not in said(tmp_path / "rooted", lines(0, 420, 426, "BROADCAST"), lines(1, 423, 424, "BROADCAST"))


WORLDS = {
    "torchrun": "+ torchrun --nnodes=4 --nproc-per-node=2 train.py",
    "apart": "torchrun --nnodes 4 \\\n  --nproc_per_node 2 train.py",
    "sbatch": "#SBATCH --nodes=4\n#SBATCH --ntasks-per-node=2",
    "program": "[2025-09-01 05:00:01] init done, world_size=8",
    "store": "torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. 7/8 clients joined.",
    "gather": "",
}


@pytest.mark.parametrize("source", WORLDS)
def test_the_world_is_what_any_line_reports(source, tmp_path):
    """Two ranks are heard of, all is well with these, and the other six are unknown: nobody is told to look elsewhere."""
    work = "\n".join(lines(r, 78, 79, "_ALLGATHER_BASE", 80) for r in range(2))
    if source == "gather":
        work = work.replace("NumelOut=80", "NumelOut=640")
    told = said(tmp_path, WORLDS[source], work)
    assert "There are logs of 2 of 8 ranks: which rank isn't in the call can't be known.\n" in told, told
    assert "look below the program" not in told and "No rank lacks" not in told
    alone = said(tmp_path / "alone", work.replace("NumelOut=640", "NumelOut=80"))
    assert "whether the job has more ranks" in alone and "If it has none and all fits, look below the program" in alone


def test_calls_that_are_queued_are_no_waits(tmp_path):
    """How far Python has run ahead means nothing: all of them wait in the call after the last that has ended."""
    told = said(tmp_path, lines(0, 78, 81), SIGNAL.format(r=1, queued=85, done=77), SIGNAL.format(r=2, queued=79, done=77))
    assert "#85" not in told and "#79" not in told and "lacks" not in told.split("\n\n")[1], told
    assert told.startswith("No rank lacks a call: all 3 ranks have made all_reduce #78"), told


def test_groups_of_one_name_are_told_apart(tmp_path):
    """Rank 1's line is of a group with a number, or with members, of its own: it lacks none of those of rank 0's group."""
    dp = ("1", "mesh_dp")
    programs = [[Do("all_reduce", dp, line=3)] if rank in (0, 2) else [STOP] for rank in range(8)]
    Played({WORLD: tuple(range(8)), dp: (0, 2, 4, 6)}, programs).write(tmp_path, missing=(1, 3, 4, 5, 6, 7))
    status = STATUS.format(r=1, seq=1, queued=1, done=0).replace("PG ID 0 PG GUID 0(default_pg) Rank 1", "PG ID 1 PG GUID {}(mesh_dp) Rank 0")
    for name in ("2", "1"):
        told = said(tmp_path, status.format(name))
        assert "Rank 1 is waiting in call #1 of group mesh_dp, for" in told, told
        assert "lacks" not in told and "hold" not in told, told


def test_the_group_that_is_behind_the_others_of_its_kind(tmp_path):
    """One tensor-parallel group of a mesh is a call behind: there the hang began, and data parallelism waits for it."""
    groups, programs = dumps.mesh(1, 6, 2), []
    tp = {rank: group for group, ranks in groups.items() if group[1] == "mesh_tp" for rank in ranks}
    dp = {rank: group for group, ranks in groups.items() if group[1] == "mesh_dp" for rank in ranks}
    for rank in range(12):
        programs.append([Do("all_reduce", tp[rank], line=1), Do("all_reduce", dp[rank], line=2)])
    programs[5] = [STOP]
    Played(groups, programs).write(tmp_path, missing=(1, 3, 5, 6, 7, 8, 9, 10, 11))
    told = explain(tmp_path)
    assert told.startswith("There are dumps of 3 of 12 ranks.\nGroup mesh_tp (4, 5) is behind the others of its kind: "), told
    assert "which ranks 0 and 2 have completed in theirs. If all of them make the same calls, the hang began among" in told


def test_what_is_passed_fits_only_if_it_is_known(tmp_path):
    told = said(tmp_path, *(STATUS.format(r=r, seq=9, queued=9, done=8) for r in range(3)))
    assert "Whether what they pass fits together isn't known" in told, told


def test_logs_fill_in_for_dumps_that_are_missing(tmp_path):
    programs = [[Do("all_reduce", WORLD, line=n) for n in range(4)][: 2 if rank == 1 else 4] for rank in range(3)]
    Played({WORLD: (0, 1, 2)}, programs).write(tmp_path, missing=(1,))
    told = said(tmp_path, SIGNAL.format(r=1, queued=2, done=2))
    assert told.startswith("Rank 1 holds up the other 2: it has not made all_reduce #3.")


# --- NCCL's own log -----------------------------------------------------------------------

# https://github.com/NVIDIA/nccl/issues/1866, 1925, 1189, 1412, 1814, 941, 707; Azure/aks-rdma-infiniband#36
GOOD = """{h}:100:200 [{g}] NCCL INFO NCCL version 2.27.6+cuda13.0
{h}:100:200 [{g}] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB eth0:172.25.30.42<0>
{h}:100:200 [{g}] NCCL INFO Using network IB
{h}:100:200 [{g}] NCCL INFO Channel 00/0 : 3[1] -> 2[0] via P2P/CUMEM
{h}:100:200 [{g}] NCCL INFO Channel 00/0 : 9[1] -> 0[0] [receive] via NET/IB/0/GDRDMA
{h}:100:200 [{g}] NCCL INFO Channel 01/0 : 9[1] -> 0[0] [receive] via NET/IB/1/GDRDMA
{h}:100:200 [{g}] NCCL INFO 16 coll channels, 16 collnet channels, 0 nvls channels, 16 p2p channels, 2 p2p channels per peer
{h}:100:200 [{g}] NCCL INFO ncclCommInitRankConfig comm 0x5 rank {r} nranks 2 cudaDev 0 nvmlDev 0 busId 7000 commId 0xd - Init COMPLETE
"""


def test_a_good_start_of_nccl(tmp_path):
    told = said(tmp_path, GOOD.format(h="node1", g=0, r=0), GOOD.format(h="node2", g=0, r=1))
    assert told.startswith("NCCL 2.27.6+cuda13.0: 2 processes on 2 hosts, the largest communicator of 2 ranks.")
    for words in (
        "network      IB",
        "NET/IB mlx5_0:1/IB, NET/IB mlx5_1:1/IB",
        "4 by NET/IB/GDRDMA, 2 by P2P/CUMEM",
        "channels     16",
    ):
        assert words in told, told
    assert len(told.splitlines()) == 5  # nothing is wrong with it


@pytest.mark.parametrize(
    "old, new, sentence",
    [
        ("2.27.6+cuda13.0", "2.26.2+cuda12.2", "The versions differ: 2.26.2+cuda12.2, 2.27.6+cuda13.0."),
        ("Using network IB", "Using network Socket", "Hosts use different networks: IB on node1; Socket on node2."),
        ("NET/IB/0/GDRDMA", "NET/IB/0", "Of the connections between nodes, 3 of 4 use GPUDirect RDMA (/GDRDMA): the others go through the CPU's memory, on node2."),
        ("P2P/CUMEM", "SHM/direct/direct", "1 connections inside a node go through the CPU's memory (SHM)"),
        ("16 coll channels", "1 coll channels", ""),
        ("[1]mlx5_1:1/IB ", "", "Hosts have different numbers of cards: 2 on node1; 1 on node2."),
        ("rank 1 nranks 2 cudaDev", "rank 1 nranks 3 cudaDev", "Of the communicator of 3 ranks, 2 never said Init COMPLETE: 0, 2."),
        ("Using network IB", "NET/IB : No device found.\nnode2:100:200 [0] NCCL INFO Using network Socket", "node2 uses TCP (NET/Socket), since NET/IB found no device there"),
        ("Using network IB", "Using network IB\nnode2:100:200 [0] NCCL INFO GPU Direct RDMA Disabled for HCA 1 'mlx5_1' (no module)", "GPUDirect RDMA is off for HCA 1 'mlx5_1' (no module) (1 time)."),
        ("Using network IB", "Using network IB\nnode2:100:222 [0] transport/net_ib.cc:1238 NCCL WARN NET/IB : Got completion from peer 10.216.210.236<54862> with status=12 opcode=0 len=0 vendor err 129 (Recv)", "(no answer after all retries: a link, a card or the peer's process)"),
    ],
)  # fmt: skip
def test_what_is_wrong_in_nccls_log(old, new, sentence, tmp_path):
    bad = GOOD.format(h="node2", g=0, r=1)
    assert old in bad
    assert sentence in said(tmp_path, GOOD.format(h="node1", g=0, r=0), bad.replace(old, new))


def test_the_guides_own_lines_are_read_as_its_page_breaks_them(tmp_path):
    """As whoever copies them from a page, a ticket or a mail has them."""
    page = (ROOT / "notebooks" / "three_in_the_morning.md").read_text().partition("## The watchdog's message")[2]
    block = next(part for part in page.split("\n\n") if part.startswith("    [rank0]"))
    (tmp_path / "pasted.log").write_text(textwrap.dedent(block))
    told = explain(tmp_path)
    assert block.count("\n") == 4 and told.startswith("Rank 0 timed out in reduce_scatter_single #7753 of group 1 after 600 s, with 544,997,376 elements; #7752 had completed."), told
    assert "cut off" not in told, told


# --- what was measured --------------------------------------------------------------------

REPORT = """# nccl-tests version 2.17.6 nccl-headers=22807 nccl-library=22807
# Collective test starting: all_reduce_perf
# Using devices
#  Rank  0 Group  0 Pid  10 on      node1 device  0 [0000:18:00] NVIDIA H100 80GB HBM3
#  Rank  1 Group  0 Pid  11 on      node2 device  0 [0000:18:00] NVIDIA H100 80GB HBM3
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
  1073741824     268435456     float     sum      -1  5000.0  214.75  402.65      0  4900.0  219.13  410.87      0
  2147483648     536870912     float     sum      -1  9900.0  216.92  406.72      0  9800.0  219.13  410.87      0
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 407.77
"""


def test_a_report_of_nccl_tests(tmp_path):
    told = said(tmp_path, REPORT)
    assert told.startswith("all_reduce on 2 ranks, 2 nodes: busbw of 410.9 GB/s at best.")
    assert "1 GiB" in told and "4.9 ms" in told
    alone = REPORT + REPORT.replace("Rank  1", "Rank  0")
    assert "has several tables" in said(tmp_path, alone)


def test_inspectors_objects_and_the_rank_that_came_last(tmp_path):
    def one(rank: int, microseconds: int) -> str:
        perf = {"coll": "AllReduce", "coll_sn": 7, "coll_msg_size_bytes": 1 << 30, "coll_exec_time_us": microseconds, "coll_algobw_gbs": 277.2, "coll_busbw_gbs": 485.1}  # fmt: skip
        head = {"id": "0x7f8c496ae9f661", "rank": rank, "n_ranks": 8, "nnodes": 1}
        return json.dumps({"header": head, "metadata": {"hostname": "node7"}, "coll_perf": perf})

    (tmp_path / "inspector.log").write_text(
        "\n".join(one(r, 900 if r == 5 else 61974) for r in range(8)) + '\n{"header": {"id"'
    )
    told = explain(tmp_path)
    assert told.startswith("all_reduce on 8 ranks, 1 node: busbw of 485.1 GB/s at best.")
    assert "In all_reduce of 1 GiB, rank 5 on node7 spent less time than the others" in told
    assert "cut short; what came before is used" in told


def test_a_folder_of_logs_holds_no_run(tmp_path):
    (tmp_path / "nccl.log").write_text(GOOD.format(h="node1", g=0, r=0))
    with pytest.raises(ValueError, match="no dump and no trace is under"):
        load(tmp_path)


def test_dumps_and_nccls_log_together(tmp_path):
    programs = [[Do("all_reduce", WORLD)], [STOP]]
    Played({WORLD: (0, 1)}, programs).write(tmp_path)
    told = said(tmp_path, GOOD.format(h="node1", g=0, r=0))
    assert told.startswith("Rank 1 holds up the other rank: it has not made all_reduce #1.")
    assert "NCCL 2.27.6+cuda13.0: 1 process on 1 host" in told
    assert dumps.WORLD == WORLD
