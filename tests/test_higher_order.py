"""torch's higher-order operators, FlexAttention among them, under the modes by which ranks are observed."""

import warnings

import pytest
import torch
import torch.distributed as dist

from collectives.train.observer import observed
from helpers import run

H = torch.ops.higher_order


def flex_attention():
    from torch.nn.attention.flex_attention import flex_attention

    q = torch.arange(64.0).view(1, 2, 8, 4) / 64
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is slow uncompiled
        return flex_attention(q, q, q, score_mod=lambda score, b, h, i, j: score - (i - j).abs())


def cond():
    x = torch.ones(3, requires_grad=True)
    torch.cond(x.sum() > 0, lambda x: x * 2, lambda x: x * 3, (x,)).sum().backward()
    return x.grad


def while_loop():
    from torch._higher_order_ops import while_loop

    return while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x * 2), (torch.tensor(0), torch.ones(2)))


def scan():
    from torch._higher_order_ops import scan

    return scan(lambda carry, x: (carry + x, carry * x), torch.zeros(2), torch.ones(3, 2))


def associative_scan():
    from torch._higher_order_ops import associative_scan

    return associative_scan(lambda a, b: a + b, torch.ones(3, 2), 0, combine_mode="generic")


def map_():
    from torch._higher_order_ops import map as map_over

    return map_over(lambda row: row * 2, torch.ones(3, 2))


def foreach_map():
    from torch._higher_order_ops import foreach_map

    return foreach_map(torch.add, [torch.ones(2)], [torch.ones(2)])


def out_dtype():
    a = torch.ones(2, 2, dtype=torch.int8)
    return H.out_dtype(torch.ops.aten.mm.default, torch.int32, a, a)


def strict_mode():
    return H.strict_mode(lambda x: (x + 1,), (torch.ones(2),))


def hints_wrapper():
    return H.hints_wrapper(lambda x: (x + 1,), (torch.ones(2),), {}, hints={})


def graph():
    return torch.fx.symbolic_trace(lambda x: (x + 1,))


def run_const_graph():
    return H.run_const_graph(graph(), (torch.ones(2),))


def invoke_subgraph():
    return H.invoke_subgraph(graph(), "sub", torch.ones(2))


def compiled_whole():
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Tanh())
    with torch.no_grad():
        for p in model.parameters():
            p.fill_(0.5)
    return torch.compile(lambda x: model(x).sin(), fullgraph=True, backend="aot_eager")(torch.ones(2, 3)).detach()


PROGRAMS = [
    flex_attention, cond, while_loop, scan, associative_scan, map_, foreach_map, out_dtype, strict_mode, hints_wrapper,
    run_const_graph, invoke_subgraph,
]  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_watching_changes_nothing_of_a_higher_order_operator(program):
    torch.compiler.reset()  # else what the one has compiled is there for the other
    watched = observed(program)().result
    torch.compiler.reset()
    torch.testing.assert_close(watched, program())


# torch refuses the backward of cond there.
UNDER_WAY = [*(program for program in PROGRAMS if program is not cond), compiled_whole]


@pytest.mark.slow
def test_higher_order_operators_run_while_calls_are_under_way():
    def together():
        y = torch.ones(2)
        work = dist.all_reduce(y, async_op=True)
        results = [program() for program in UNDER_WAY]
        work.wait()
        return results

    expected = [program() for program in UNDER_WAY]
    for results in run(together, world_size=2).results:
        torch.testing.assert_close(results, expected)
