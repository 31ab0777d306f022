"""The eight incidents of exercise 19: what is true of each, in plain words, and answers.

python -m tests.corpus.incidents  # seals the truth for learners: exercises/tasks/19_which_node.json
"""

from __future__ import annotations

import json
from typing import NamedTuple

from tests.corpus.answers import register


class Truth(NamedTuple):
    """What is true of an incident, and the evidence against what is not."""

    answer: dict[str, str]  # host, or "none" -> reason
    debrief: str  # for a right answer
    hosts: dict[str, str]  # a host that isn't to be drained, "*" for all others -> the evidence against draining it
    reasons: dict[str, str]  # a wrong reason, "*" for all others -> the evidence against it
    only: dict[str, str] = {}  # of several hosts, those that were found -> what points at the rest


TRUTHS = {
    1: Truth(
        {"node14": "gpu"},
        "Xid 79 on node14 at 03:01:57: a GPU fell off the bus, four seconds before the wait began. 63 watchdogs fired ten minutes "
        "later; rank 29, on that GPU, never wrote a line.",
        {
            "node11": "node11's rank 3 reports first and most, but a watchdog reports who waited. Which of the 64 ranks has no line at all?",
            "node12": "node12's Xid 63 at 01:14 is a note: a row of memory was remapped, and its eight ranks came to call 48211 like the rest.",
            "node16": "node16's Xids 45 come at 03:12, after the watchdogs ended its processes: a cleanup. What happened ten minutes earlier?",
            "node18": "node18's Xids 45 come after the watchdogs ended its processes. What happened ten minutes earlier?",
            "none": "the watchdogs' limit is ten minutes. What does the kernel of one host report ten minutes before them?",
            "*": "all eight of its ranks are waiting in call 48211, and its kernel reports nothing from before the wait. Which rank is missing?",
        },
        {
            "host gone": "seven of node14's ranks still wrote their watchdog's lines, so the host is up. Read its dmesg.",
            "*": "read node14's dmesg: what does the kernel report at 03:01:57?",
        },
    ),
    2: Truth(
        {"none": "out of data"},
        "Rank 6 ended epoch 2 after 211 batches, where it had 212 before. It went on to validation while the others waited in their "
        "212th step. Draining cn04 would have changed nothing: the sampler has to give all ranks equally many batches.",
        {
            "cn04": "cn04's throttling and link flap are three to six hours old, and rank 7 on the same host waits like the rest. Compare what rank 6 "
            "logs at the end of epoch 1 and of epoch 2.",
            "*": "its ranks are all in the same all_reduce, waiting. Which rank isn't in it, and what did it log last?",
        },
        {
            "different calls": "the dumps show a barrier next to all_reduce, but all ranks call it, at the end of an epoch. Why did rank 6 come to it first? "
            "Compare its log's epochs.",
            "heat": "the throttling on cn04 lasted three seconds, at 02:50. The job hangs at 08:47.",
            "link": "cn04's link was down for three seconds at 05:20, hours before this job began.",
            "*": "how many batches did rank 6 have in epochs 0, 1, and 2?",
        },
    ),
    3: Truth(
        {"node25": "host gone"},
        "Eight ranks in a row are silent, RAS misses the same eight, their log just ends, ssh finds no route, and three "
        "hosts' NICs gave up on 10.4.0.25. node22 has the most error lines, and they are its peer's fault.",
        {
            "node22": "node22's five lines with status=5 are consequences, what was queued when another error came. The one with status=12 names a peer, and "
            "its link flapped an hour and a half before the hang.",
            "node27": "node27's Xid 45 is the driver's cleanup, seconds after its watchdogs fired.",
            "none": "eight ranks in a row don't answer RAS. Where do they run, and does that host still answer?",
            "*": "all of its ranks reported that they wait in call 25231. Which eight report nothing, to the watchdog or to RAS?",
        },
        {"*": "nothing says what failed inside of node25. What do ssh, RAS, and the end of its log have in common?"},
    ),
    4: Truth(
        {"node33": "link"},
        "Nothing hangs, so RAS is content. node33's link went down and up at 02:11:08, in the very minute when steps went from 1.3 to 3 s, "
        "and its error counters still grow. Drain it, and have the cable and the port looked at.",
        {
            "node31": "node31 prints the warnings because rank 0 does the logging. Its own line says that a second of the step is compute, the rest is waiting.",
            "node32": "node32 has the largest counters, but they are the same in both files: old errors. Which host's errors grow?",
            "node34": "node34's Xid 63 is a note about a row of memory, and its clocks are within 1% of the others', with no reason to throttle.",
            "none": "every step takes more than twice as long since 02:11. What else happened in that minute?",
            "*": "compare the two files of counters. Which host's errors grow?",
        },
        {
            "gpu": "node33's GPUs run at full clocks, and its kernel has no Xid.",
            "heat": "node33 has the coolest GPUs, at full clocks.",
            "host gone": "all 32 ranks answer RAS, with equal counts.",
            "*": "node33's dmesg has three pairs of lines, and its counters grow. What are they about?",
        },
    ),
    5: Truth(
        {"none": "different calls"},
        "Call 638 is an all_gather on rank 5, in keep_outliers, and an all_reduce on all others, in clip: rank 5 took a branch that depends on "
        "its own loss. The corrected memory error of cn03 is noise. Fix the program.",
        {
            "cn03": "rank 5 is the odd one, but it's waiting in a call, on a line of the program. cn03's memory error was a corrected one (CE), an hour earlier.",
            "cn01": "cn01's throttling lasted a second, and ended seven minutes before the job hung.",
            "*": "its ranks wait in call 638, as all do. Compare the name of that call in all eight dumps.",
        },
        {
            "memory": "the memory error on cn03 is a CE, which the hardware corrected. Compare the last entries of the dumps.",
            "out of data": "no rank is a call short: all eight have made call 638. Is it the same call?",
            "*": "compare the last entry of rank 5's dump with the last one of any other's.",
        },
    ),
    6: Truth(
        {"none": "memory limit"},
        "The kernel killed rank 9 (exitcode -9) because its container had used all of its 64 GiB, on a host with 400 GiB free. The fifteen "
        "others report what follows. Raise the limit, or find what grows.",
        {
            "node03": "node03 had 412 GiB available. The line before the kill says CONSTRAINT_MEMCG, and which limit was reached.",
            "node04": "torchrun's root cause on node04 is the first failure on that host, a lost connection. Which host's has an exitcode -9? And its memory error was "
            "corrected, hours earlier.",
            "node01": "node01's link came back after three seconds, 19 minutes before the job ended. Its ranks report that a peer closed the connection. Who did?",
            "*": "its ranks report that a peer closed the connection. Which rank ended first, and by which signal?",
        },
        {
            "memory": "no memory module failed. Which limit does node03's dmesg name, and whose is it?",
            "*": "rank 9 has exitcode -9, so something killed it. What does its host's dmesg report in that second?",
        },
    ),
    7: Truth(
        {"cn03": "memory", "cn06": "link"},
        "Two faults within a second. Rank 4 waits for rank 5 in their pair, on account of cn06's link; rank 3 waits for rank 2 in theirs, on account "
        "of cn03's uncorrected memory error. All others wait for these two. Drain one alone, and the job hangs again.",
        {
            "cn01": "cn01's throttling lasted a second, almost an hour before the job began.",
            "cn04": "rank 3 is waiting in its pair (tp) for the other one. Who is that, and where does it run?",
            "cn05": "rank 4 is waiting in its pair (tp) for the other one. Who is that, and where does it run?",
            "none": "ranks 2 and 5 left no dump, and their logs end early. What do the kernels of their hosts report?",
            "*": "its rank is waiting in a column (dp) for a rank that is itself waiting, in its pair. Follow the waits to their ends.",
        },
        {
            "cn03: link": "cn03's link is fine. What is a UE?",
            "cn06: memory": "cn06's memory is fine. What does its kernel report about eth0?",
            "cn03: *": "read cn03's dmesg: what is a UE?",
            "cn06: *": "read cn06's dmesg: did what went down come up again?",
        },
        {
            "cn03": "rank 4 waits for rank 5 in a pair, to which cn03's rank doesn't belong. What about rank 5's host?",
            "cn06": "rank 3 waits for rank 2 in a pair, to which cn06's rank doesn't belong. What about rank 2's host?",
        },
    ),
    8: Truth(
        {"none": "storage"},
        "Ranks 2 and 5, on two hosts, are in the same open() of the data loader in both stacks, and every host's kernel reports that the file "
        "server fs02 doesn't answer. The other ranks wait in all_reduce. Call whoever runs fs02.",
        {
            "cn02": "rank 2 is late, but so is rank 5 on another host, on the same line. cn02's memory error was corrected, half an hour earlier.",
            "cn03": "rank 5 is late, but so is rank 2 on another host, on the same line. cn03's throttling lasted a second, 18 minutes earlier.",
            "*": "its ranks are waiting in all_reduce. Which two aren't, and what are they doing in both stacks?",
        },
        {
            "out of data": "a rank without data leaves the loop. Ranks 2 and 5 are inside of the loader, opening a file.",
            "*": "ranks 2 and 5 are opening a file in both stacks. What do all four kernels report?",
        },
    ),
}  # fmt: skip

RIGHT, WRONG, right, wrong = register()


# --- 1 -------------------------------------------------------------------------------------


@right("incident_1")
def off_the_bus():
    return {"node14": "gpu"}


@wrong("incident_1", "don't drain node11(?s:.*)a watchdog reports who waited")
def the_loudest():
    return {"node11": "gpu"}


@wrong("incident_1", "don't drain node12(?s:.*)is a note")
def a_remapped_row():
    return {"node14": "gpu", "node12": "memory"}


@wrong("incident_1", "node14 is right, but the reason isn't 'host gone'(?s:.*)the host is up")
def silent_but_up():
    return {"node14": "host gone"}


@wrong("incident_1", "the hosts of this incident are node11 to node18")
def rank_instead_of_host():
    return {"rank 29": "gpu"}


# --- 2 -------------------------------------------------------------------------------------


@right("incident_2")
def one_batch_short():
    return {"none": "out of data"}


@wrong("incident_2", "don't drain cn04(?s:.*)hours old")
def an_old_flap():
    return {"cn04": "link"}


@wrong("incident_2", "don't drain cn01(?s:.*)in the same all_reduce")
def first_to_time_out():
    return {"cn01": "gpu"}


@wrong("incident_2", "draining none is right, but the reason isn't 'different calls'(?s:.*)at the end of an epoch")
def a_barrier_among_sums():
    return {"none": "different calls"}


# --- 3 -------------------------------------------------------------------------------------


@right("incident_3")
def eight_in_a_row():
    return {"node25": "host gone"}


@wrong("incident_3", "don't drain node22(?s:.*)are consequences")
def most_errors():
    return {"node22": "link"}


@wrong("incident_3", "drain a node(?s:.*)eight ranks in a row")
def drains_none():
    return {"none": "different calls"}


@wrong("incident_3", "the reason isn't 'gpu'(?s:.*)nothing says what failed")
def guesses_the_part():
    return {"node25": "gpu"}


# --- 4 -------------------------------------------------------------------------------------


@right("incident_4")
def counters_that_grow():
    return {"node33": "link"}


@wrong("incident_4", "don't drain node32(?s:.*)the same in both files")
def largest_counters():
    return {"node32": "link"}


@wrong("incident_4", "don't drain node31(?s:.*)rank 0 does the logging")
def who_prints():
    return {"node31": "gpu"}


@wrong("incident_4", "drain a node(?s:.*)more than twice as long")
def equal_counts():
    return {"none": "storage"}


# --- 5 -------------------------------------------------------------------------------------


@right("incident_5")
def parted():
    return {"none": "different calls"}


@wrong("incident_5", "don't drain cn03(?s:.*)corrected one")
def host_of_the_odd_rank():
    return {"cn03": "memory"}


@wrong("incident_5", "the reason isn't 'out of data'(?s:.*)no rank is a call short")
def no_call_short():
    return {"none": "out of data"}


@wrong("incident_5", "return a dict")
def host_alone():
    return "cn03"


# --- 6 -------------------------------------------------------------------------------------


@right("incident_6")
def its_limit():
    return {"none": "memory limit"}


@wrong("incident_6", "don't drain node03(?s:.*)412 GiB available")
def host_of_the_killed_rank():
    return {"node03": "memory"}


@wrong("incident_6", "don't drain node04(?s:.*)first failure on that host")
def root_cause_of_torchrun():
    return {"node04": "memory"}


@wrong("incident_6", "the reason isn't 'memory'(?s:.*)no memory module failed")
def not_a_module():
    return {"none": "memory"}


# --- 7 -------------------------------------------------------------------------------------


@right("incident_7")
def two_at_once():
    return {"cn06": "link", "cn03": "memory"}


@wrong("incident_7", "cn06 is right, but not all(?s:.*)rank 2's host")
def first_of_two():
    return {"cn06": "link"}


@wrong("incident_7", "don't drain cn05(?s:.*)Who is that")
def who_waits():
    return {"cn05": "gpu", "cn03": "memory"}


@wrong("incident_7", "cn03 is right, but the reason isn't 'link'(?s:.*)What is a UE")
def reasons_swapped():
    return {"cn03": "link", "cn06": "memory"}


# --- 8 -------------------------------------------------------------------------------------


@right("incident_8")
def file_server():
    return {"none": "storage"}


@wrong("incident_8", "don't drain cn02(?s:.*)so is rank 5")
def one_of_the_late():
    return {"cn02": "memory"}


@wrong("incident_8", "the reason isn't 'out of data'(?s:.*)inside of the loader")
def without_data():
    return {"none": "out of data"}


@wrong("incident_8", "must be one of 'gpu', 'link'")
def own_reason():
    return {"none": "nfs"}


# --- the sealed file ----------------------------------------------------------------------


def claims(truth: Truth) -> dict[str, str]:
    """Everything that is said of an answer, by the claim that it is about."""
    said = {f"debrief {', '.join(f'{host}: {reason}' for host, reason in sorted(truth.answer.items()))}": truth.debrief}
    for host, reason in truth.answer.items():
        said |= {f"right {host}: ": "", f"right {host}: {reason}": ""}
        said |= {f"{host}: {wrong}": words for wrong, words in truth.reasons.items() if ": " not in wrong}
    said |= {wrong: words for wrong, words in truth.reasons.items() if ": " in wrong}
    said |= {f"{host}: {host * (host == '*')}": words for host, words in truth.hosts.items()}
    return said | {f"only {host}": words for host, words in truth.only.items()}


def sealed_file(task) -> str:
    """The text of the sealed file: by incident, the sealed sentences.  task: the module of the exercise."""
    sentences = {
        number: {
            task.fingerprint(number, claim): task.sealed(number, claim, words.encode()).hex()
            for claim, words in claims(truth).items()
        }
        for number, truth in TRUTHS.items()
    }
    return json.dumps(sentences, indent=1, sort_keys=True) + "\n"


if __name__ == "__main__":
    from helpers.exercise.tasks import module

    which_node = module("19_which_node")
    which_node.FILE.write_text(sealed_file(which_node), encoding="utf-8")
