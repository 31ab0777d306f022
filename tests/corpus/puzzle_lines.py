"""Lines for the functions of notebooks/twelve_puzzles.ipynb, as answers in the tables of practice.py.

Wrong are the lines that the page offers, each with the words that it deserves; right is a different line than the page's own.
"""

from tests.corpus.practice import right, wrong
from tools.frames import with_line

RIGHT_LINES = {
    "everyones_sum": "dist.all_reduce(x, async_op=True).wait()",
    "last_word": "dist.broadcast(x, group_src=dist.get_world_size() - 1)",
    "anyone_broken": "dist.all_reduce(broken)",
    "roll_call": "dist.all_gather(list(everyone.chunk(dist.get_world_size())), x)",
    "sum_again": "dist.scatter(x, [x + 0] * dist.get_world_size() if dist.get_rank() == 0 else None, src=0)",
    "my_column": "dist.all_to_all_single(column, row, async_op=True).wait()",
    "my_sum": "dist.reduce_scatter(mine, list(row.chunk(dist.get_world_size())))",
    "pass_right": "(sending,) = dist.batch_isend_irecv([dist.P2POp(dist.isend, x, (rank + 1) % n)])",
    "every_list": "dist.all_gather_object(lists, tuple(mine)); lists = [list(one) for one in lists]",
    "evens_only": "group, _ = dist.new_subgroups_by_enumeration([evens])",
    "before_me": "mine = torch.cat([torch.zeros(rank + 1), count.repeat(n - 1 - rank)])",
    "mirrored": "splits = [0] * (n - 1 - rank) + [1] + [0] * rank",
}
WRONG_LINES = {
    "everyones_sum": {
        "x = dist.all_reduce(x)": "all_reduce returns None",
        "dist.reduce(x, dst=0)": "rank 0 alone gets the result of reduce",
        "if dist.get_rank() == 0: dist.all_reduce(x)": "the others never make the call",
    },
    "last_word": {
        "dist.broadcast(x, src=dist.get_world_size())": "ranks count from 0",
        "dist.broadcast(x, src=dist.get_rank())": "each rank names itself as the source",
        "dist.broadcast(x, src=0)": "the first rank's number",
    },
    "anyone_broken": {
        "if broken: dist.all_reduce(broken)": "only the broken ranks call",
        "dist.all_reduce(broken, op=dist.ReduceOp.MIN)": "whether all of them are broken",
        "dist.all_reduce(loss)": "knows about itself only",
    },
    "roll_call": {
        "dist.all_gather(everyone, x)": "`all_gather` takes a list",
        "dist.all_gather_single(x, everyone)": "the output comes first",
        "dist.broadcast(everyone, src=0)": "nobody's x went into the call",
    },
    "sum_again": {
        "dist.all_reduce(x)": "that would be a shortcut",
        "dist.broadcast(x, src=dist.get_rank())": "Which rank has the sum",
        "dist.scatter(x, [x] * dist.get_world_size(), src=0)": "the source alone may pass",
    },
    "my_column": {
        "dist.all_gather_single(column, row)": "Which collective keeps the size",
        "dist.all_to_all_single(row, column)": "`column` is still zeros",
        "column = row.clone()": "this is your row",
    },
    "my_sum": {
        "dist.all_reduce(row)": "`mine` is still zero",
        "mine += row.sum()": "adds up your own row",
        "dist.all_to_all_single(mine, row)": "N numbers must become one",
    },
    "pass_right": {
        "dist.send(x, dst=(rank + 1) % n)": "Which of the three is missing",
        "sending = dist.isend(x, dst=(rank - 1) % n)": "Which of the three is missing",
        "sending = dist.irecv(y, src=(rank - 1) % n)": "Which of the three is missing",
    },
    "every_list": {
        "dist.all_gather(lists, mine)": "Which form of all_gather takes objects",
        "lists = dist.all_gather_object(lists, mine)": "all_gather_object returns None",
        "dist.broadcast_object_list(lists, src=0)": "nothing in it yet",
    },
    "evens_only": {
        "group = evens": "a list of ranks isn't a group yet",
        "group = dist.group.WORLD": "the odd ranks don't come to the all_reduce",
        "group = dist.new_group([dist.get_rank()])": "alone in its group",
    },
    "before_me": {
        "mine = count.repeat(n)": "the sum of all counts",
        "mine = count * (torch.arange(n) < rank)": "what comes after you",
        "mine = count * (torch.arange(n) >= rank)": "counts your own items too",
    },
    "mirrored": {
        "splits = [1] * n": "must add up to what you have",
        "splits = [int(k == rank) for k in range(n)]": "sent its number to itself",
        "splits = [int(k == n - rank) for k in range(n)]": "must add up to what you have",
    },
}

# A line that the page does not offer.
wrong("evens_only", "made by every rank of the world")(
    with_line("evens_only", "group = dist.new_group(evens) if dist.get_rank() in evens else None")
)

for name, line in RIGHT_LINES.items():
    right(name)(with_line(name, line))
for name, lines in WRONG_LINES.items():
    for line, words in lines.items():
        wrong(name, words)(with_line(name, line))
