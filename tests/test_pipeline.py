"""Pipeline schedules as data: proofs that tell right from wrong, counts that agree with the field's formulas and with
real ranks, pictures to scale, and the orders of torch.distributed.pipelining and of runs."""

import pytest
import torch
import torch.distributed as dist
from matplotlib.colors import to_hex

from collectives.algorithms.pipeline import (
    SCHEDULES,
    Costs,
    Pipeline,
    WrongPipeline,
    asleep,
    dualpipe,
    from_torch,
    gpipe,
    interleaved,
    modules,
    one_at_a_time,
    one_f_one_b,
    recorded,
    table,
    zero_bubble,
)
from collectives.algorithms.pipeline.picture import PALE, TINTS
from collectives.algorithms.pipeline.pipeline import kept, plan
from collectives.draw.canvas import Words
from collectives.play import play
from collectives.train import watch
from helpers import run
from helpers.model import batch, decoder, difference, loss_of, one_process
from tests.moving import Moved
from tests.sampling import slow


def possible(ranks, microbatches):
    made = []
    for schedule in SCHEDULES.values():
        try:
            made.append(schedule(ranks, microbatches))
        except ValueError:
            pass
    return made


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 5, 8])
def test_every_schedule_is_right_for_any_number_of_ranks_and_microbatches(ranks):
    for microbatches in (1, 2, 3, 4, 5, 8, 16):
        schedules = possible(ranks, microbatches)
        assert len(schedules) >= 4
        for s in [*schedules, one_f_one_b(ranks, microbatches, 2)]:
            assert s.prove().microbatches == microbatches and s.ranks == ranks


@pytest.mark.parametrize("ranks, microbatches", [(2, 4), (4, 8), (4, 4), (8, 16)])
def test_counts_are_the_formulas_of_the_papers(ranks, microbatches):
    p, m = ranks, microbatches
    for costs in (Costs(), Costs(1, 1.5, 0.5), Costs(3, 2, 2)):
        a_pass = costs.forward + costs.input + costs.weight
        for s in (gpipe(p, m), one_f_one_b(p, m)):
            c = s.count(costs)
            assert c.of_work == pytest.approx((p - 1) / m) and c.of_time == pytest.approx((p - 1) / (m + p - 1))
            assert c.sent == 2 * m * (p - 1) and c.time == pytest.approx((m + p - 1) * a_pass)
        for v in (2, 3):
            c = interleaved(p, m, v).count(costs)
            assert c.of_work == pytest.approx((p - 1) / m / v)
            assert c.sent == 2 * m * (p * v - 1) and c.peaks[0] > min(p, m) or m == p
    assert gpipe(p, m).count().peaks == [m] * p
    assert one_f_one_b(p, m).count().peaks == [min(p - r, m) for r in range(p)]
    zb = zero_bubble(p, m).count()
    assert zb.bubble == p - 1 and max(zb.peaks) == min(p, m)  # (p - 1)(F + I - W); 1F1B's first rank
    if m >= 2 * p:
        both = dualpipe(p, m).count()
        assert both.parameters == 2 and max(both.peaks) <= p + 1 and both.bubble <= zb.bubble


def test_messages_take_their_time():
    costs = Costs(1, 1, 1, message=0.5)
    assert one_at_a_time(3, 1).count(costs).time == 3 * 3 + 4 * 0.5
    assert zero_bubble(1, 4).count(costs).bubble == 0


@pytest.mark.parametrize(
    "rows, words",
    [
        ([["F0", "B0"], ["F0"]], "no backward of stage 1 and microbatch 0"),
        ([["F0", "F1", "B0"], ["F0", "B0"]], "no backward of stage 0 and microbatch 1"),
        ([["F0", "B0"], ["B0", "F0"]], "rank 1 does 1B0 before 1F0"),
        ([["F0", "F0", "B0"], ["F0", "B0"]], "0F0 is done 2 times"),
        ([["F0", "I0"], ["F0", "B0"]], "no backward, the gradient of the weights only of stage 0"),
        ([["F0", "B0", "W0"], ["F0", "B0"]], "a whole backward B, and W besides"),
        ([["0F0", "1B0"], ["1F0", "0B0"]], "rank 0 does 1B0, and rank 1 did 1F0: the activations are there"),
        ([["F0", "F1", "B1", "B0"], ["F0", "B0", "F1", "B1"]], None),
        ([["F0", "B0", "F1", "B1"], ["F0", "F1", "B0", "B1"]], "rank 0 is at 0B0 and waits for the gradient that 1B0"),
    ],
)
def test_a_proof_says_what_is_wrong(rows, words):
    s = Pipeline(rows)
    if words is None:
        assert s.prove()
        return
    with pytest.raises(WrongPipeline) as caught:
        s.prove()
    assert words in str(caught.value)


@pytest.mark.parametrize("row", [["F"], ["G0"], [3], [], ["0B"]])
def test_what_is_no_schedule_is_refused(row):
    with pytest.raises(ValueError, match="not an action|nothing to do"):
        Pipeline([row, ["F0", "B0"]])


# --- on real ranks ------------------------------------------------------------------------


def train(s, pipeline):
    rank, m = dist.get_rank(), s.microbatches
    whole = decoder(layers=2, width=16, heads=2)
    cuts = [round(k * len(whole) / s.stages) for k in range(s.stages + 1)]
    mine = {k: whole[cuts[k] : cuts[k + 1]] for k in s.held(rank)}
    tokens, targets = (t.chunk(m) for t in batch(0))
    done = pipeline(
        modules(mine, s.stages - 1, tokens, lambda y, k: loss_of(y, targets[k]) / m), torch.zeros(16 // m, 64, 16)
    )
    gradients = {name: p.grad for stage in mine.values() for name, p in stage.named_parameters()}
    return gradients, [d.action for d in done]


@pytest.mark.parametrize(
    "s",
    [
        interleaved(2, 4),
        *slow(one_f_one_b(3, 4), zero_bubble(2, 4), dualpipe(2, 4), from_torch("ZBVZeroBubble", 2, 4)),
    ],
    ids=lambda s: s.name,
)
def test_a_schedule_trains_as_one_process_does_and_sends_what_was_counted(s):
    r = run(train, s, s.program(), world_size=s.ranks)
    total = {}
    for gradients, actions in r.results:
        for name, g in gradients.items():
            total[name] = total.get(name, 0) + g
    alone = one_process(decoder(layers=2, width=16, heads=2), [batch(0)])
    assert difference(total, alone.gradients[0]) < 1e-6
    assert [actions for _, actions in r.results] == s.rows
    assert [sum(e.op == "send" for e in mine) for mine in r.events] == s.count().messages


def test_ranks_that_sleep_show_the_plan():
    s, costs = one_f_one_b(2, 2), Costs(0.01, 0.01, 0.01)

    r = run(asleep(s, costs), world_size=2)
    ends = {d.action: (d.start, d.end) for mine in r.results for d in mine}
    for a, (start, end) in ends.items():
        assert end - start >= costs.of(a.kind)
        assert s.needs(a) is None or start >= ends[s.needs(a)][1]
    assert "planned: 90 ms" in s.beside(r, costs).text


def test_the_wrong_number_of_ranks_is_told():
    with pytest.raises(Exception, match="a schedule for 3 ranks, not 2"):
        run(lambda step: step(None, torch.zeros(1)), gpipe(3, 2).program(), world_size=2)


# --- others' ------------------------------------------------------------------------------


def test_torchs_orders_are_ours():
    assert from_torch("GPipe", 4, 8) == gpipe(4, 8)
    assert from_torch("Interleaved1F1B", 4, 8) == interleaved(4, 8)
    assert from_torch("Interleaved1F1B", 2, 4, 3) == interleaved(2, 4, 3)
    for name in ("LoopedBFS", "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV"):
        assert from_torch(name, 4, 8).prove()
    with pytest.raises(ValueError, match="watch a run"):
        from_torch("1F1B", 4, 8)


def torchs_1f1b(m):
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    rank, n = dist.get_rank(), dist.get_world_size()
    stage = decoder(layers=n - 2, width=16, heads=2)[rank : rank + 1]
    schedule = Schedule1F1B(PipelineStage(stage, rank, n, torch.device("cpu")), m, loss_fn=loss_of)
    tokens, targets = batch(0)
    schedule.step(*[tokens] * (rank == 0), **{"target": targets} if rank == n - 1 else {})


def test_a_run_of_torchs_1f1b_is_recognised():
    assert recorded(watch(torchs_1f1b, 4, world_size=3), 4) == one_f_one_b(3, 4)


def test_halves_of_a_backward_are_not_guessed_from_a_run():
    s = zero_bubble(2, 2)
    with pytest.raises(ValueError, match="went backward 4 times for 2 forwards: in halves"):
        recorded(watch(train, s, s.program(), world_size=2))


# --- pictures and words -------------------------------------------------------------------


def test_boxes_are_to_scale_and_in_the_colour_of_what_they_do():
    s = zero_bubble(3, 4)
    lanes, _ = plan(s)
    boxes = {}
    for artist in s.draw().artists:
        if hasattr(artist, "get_path") and artist.get_facecolor()[3]:
            x0, x1 = (f(artist.get_path().vertices[:, 0]) for f in (min, max))
            boxes.setdefault(to_hex(artist.get_facecolor()), []).append((x0, x1 - x0))
    left = min(x for x, _ in boxes[TINTS["F"]] if x > 20)
    for kind in "FIW":
        wanted = [box for lane in lanes for box in lane if box.action.kind == kind]
        drawn = [(x, w) for x, w in boxes[TINTS[kind]] if x >= left]
        drawn = [pair for pair in drawn if pair[1] != 14]  # not the legend's
        unit = drawn[0][1] + 0.8
        assert [round((x - left) / unit, 3) for x, _ in drawn] == [box.start for box in wanted]
    assert not set(PALE.values()) & set(boxes)  # one stage a rank
    assert set(PALE.values()) & {
        to_hex(a.get_facecolor()) for a in dualpipe(2, 4).draw().artists if hasattr(a, "get_path")
    }


def test_the_legend_has_pale_boxes_where_there_are_any():
    def legend(s):
        return {a.words for a in s.draw().artists if isinstance(a, Words)} & {"second stage", "later stages"}

    assert [legend(s) for s in (zero_bubble(3, 4), dualpipe(4, 8), interleaved(2, 4, 3))] == [
        set(), {"second stage"}, {"later stages"},
    ]  # fmt: skip
    assert dualpipe(4, 8).draw().pixels == one_f_one_b(4, 8).draw().pixels  # it has room


def test_words_say_the_order_and_what_is_kept():
    assert repr(one_f_one_b(2, 2)) == (
        "1F1B: 2 ranks, 2 microbatches\n  rank 0 keeps 2     F0 F1 B0 B1\n  rank 1 keeps 1     F0 B0 F1 B1"
    )
    assert kept(interleaved(2, 2), 1) == [0.5, 1, 1.5, 1, 1.5, 1, 0.5, 0]
    lines = repr(table(possible(4, 8))).splitlines()
    assert len(lines) == 7 and lines[2].split() == ["GPipe", "33", "37.5%", "8", "48", "1/4"]
    stuck = Pipeline([["F0", "B0", "F1", "B1"], ["F0", "F1", "B0", "B1"]])
    words = [a.words for a in stuck.draw().artists if isinstance(a, Words)]
    assert any("deadlock" in said for said in words)
    assert [said for said in words if said.startswith("keeps")] == ["keeps 1", "keeps 1"]  # each has done its F0


def test_the_player_moves_with_its_controls_and_says_what_cannot_be():
    player = play("1F1B", 4, 8)
    moved = Moved(player.widget())
    now = moved.move(microbatches="16")
    assert player.count.of_work == pytest.approx(3 / 16) and now["picture"]["src"].startswith("data:image/svg+xml")
    assert "bubble 18.8% of the work" in now["words"] and "before: time 33, bubble 37.5%" in now["words"]
    assert "groups of 3" in moved.move(name="interleaved", ranks="3")["words"]
    assert "picture" not in moved.move(microbatches="17")
    assert "picture" in moved.move(microbatches="18") and player.schedule == interleaved(3, 18)
    moved.move(input="4")
    assert player.costs.input == 4
    with pytest.raises(ValueError, match="no schedule 'GPip'"):
        play("GPip")
