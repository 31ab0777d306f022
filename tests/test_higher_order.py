"""torch's higher-order operators, FlexAttention among them, under the modes by which ranks are observed."""

import importlib
import pkgutil
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


def wrap():
    return H.wrap(lambda x: (x + 1,), torch.ones(2))


def wrap_with_set_grad_enabled():
    return H.wrap_with_set_grad_enabled(False, lambda x: (x + 1,), torch.ones(2))


def wrap_with_autocast():
    return H.wrap_with_autocast("cpu", torch.bfloat16, True, None, lambda a: (a @ a,), torch.ones(2, 2))


def tag_activation_checkpoint():
    return H.tag_activation_checkpoint(graph(), torch.ones(2), use_reentrant=False)


def wrap_activation_checkpoint():
    return H.wrap_activation_checkpoint(graph(), torch.ones(2), use_reentrant=False)


def run_with_rng_state():
    torch.manual_seed(0)
    state, x = H.run_and_save_rng_state(torch.ops.aten.rand.default, [2], device=torch.device("cpu"))
    return x, H.run_with_rng_state(state, torch.ops.aten.rand.default, [2], device=torch.device("cpu"))


def invoke_quant():
    from torch._higher_order_ops import InvokeQuant

    return InvokeQuant()(lambda x: (x + 1,), torch.ones(2))


def print_():
    return H.print("{x}", x=1)


def while_loop_stack_output():
    """The backward of while_loop is made of it."""
    from torch._higher_order_ops import while_loop

    x = torch.ones(2, requires_grad=True)
    while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x * 2), (torch.tensor(0), x))[1].sum().backward()
    return x.grad


def switch():
    x = torch.ones(3, requires_grad=True)
    torch._higher_order_ops.switch(1, (lambda x: x * 2, lambda x: x * 3), (x,)).sum().backward()
    return x.grad


def flex_gemm():
    x = torch.arange(4.0).view(2, 2) - 1
    return torch._higher_order_ops.flex_gemm(torch.mm, (x, x), torch.relu)


class Doubled(torch.autograd.Function):
    generate_vmap_rule = True
    forward = staticmethod(lambda x: x * 2)
    setup_context = staticmethod(lambda ctx, inputs, output: None)
    backward = staticmethod(lambda ctx, gradient: gradient * 2)


def custom_function_call():
    """torch.func's transforms refuse saved-tensor hooks, which an observer has."""
    x = torch.ones(3)
    by_row = torch.func.vmap(torch.func.grad(lambda row: Doubled.apply(row).sum()))(torch.ones(3, 2))
    return by_row, torch.func.jacrev(torch.func.grad(lambda x: (x**3).sum()))(x)


def of_halves():
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Tanh())
    with torch.no_grad():
        for p in model.parameters():
            p.fill_(0.5)
    return model


def compiled_whole():
    model = of_halves()
    return torch.compile(lambda x: model(x).sin(), fullgraph=True, backend="aot_eager")(torch.ones(2, 3)).detach()


def compiled_modules():
    """torch.cond compiles its branches, modules too, in a model that is compiled itself."""
    model = of_halves()

    def branches(x):
        return torch.cond(x.sum() > 0, lambda x: model(x), lambda x: model[1](x), (x,))

    compiled = torch.compile(of_halves(), fullgraph=True, backend="aot_eager")
    (compiled(torch.ones(2, 3)) + branches(torch.ones(2, 3))).sum().backward()
    return model[0].weight.grad, next(compiled.parameters()).grad


PROGRAMS = [
    flex_attention, cond, while_loop, scan, associative_scan, map_, foreach_map, out_dtype, strict_mode, hints_wrapper,
    run_const_graph, invoke_subgraph, wrap, wrap_with_set_grad_enabled, wrap_with_autocast, tag_activation_checkpoint,
    wrap_activation_checkpoint, run_with_rng_state, invoke_quant, print_, while_loop_stack_output, custom_function_call,
    compiled_whole, compiled_modules,
]  # fmt: skip
PROGRAMS += [program for program in (switch, flex_gemm) if hasattr(torch._higher_order_ops, program.__name__)]  # 2.14


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_watching_changes_nothing_of_a_higher_order_operator(program):
    torch.compiler.reset()  # else what the one has compiled is there for the other
    watched = observed(program)().result
    torch.compiler.reset()
    torch.testing.assert_close(watched, program())


# Those that only a compiler or an exporter puts into a graph, and no program calls; FlexAttention has no backward on a CPU.
IN_GRAPHS = {
    "_export_tracepoint", "aoti_call_delegate", "auto_functionalized", "auto_functionalized_v2", "autograd_function_apply",
    "call_torchbind", "control_deps", "dynamo_bypassing_wrapper", "executorch_call_delegate", "flat_apply", "flex_attention_backward",
    "graphsafe_run_with_rng_state", "inductor_compiled_code", "inline_asm_elementwise", "invoke_leaf_function",
    "invoke_quant_packed", "local_map_hop", "register_hook", "run_dtensor_rng_op", "triton_kernel_wrapper_functional",
    "trace_wrapped", "triton_kernel_wrapper_mutation", "with_effects",
}  # fmt: skip


def test_each_higher_order_operator_of_torch_has_a_program():
    for module in pkgutil.iter_modules(importlib.import_module("torch._higher_order_ops").__path__):
        if module.name != "executorch_call_delegate":
            importlib.import_module(f"torch._higher_order_ops.{module.name}")
    ours = {program.__name__.strip("_") for program in PROGRAMS} | {"map_impl", "run_and_save_rng_state"}
    assert set(torch._ops._higher_order_ops) - ours <= IN_GRAPHS


# torch refuses the backward of cond and of while_loop there.
REFUSED = cond, while_loop_stack_output, compiled_modules
UNDER_WAY = [program for program in PROGRAMS if program not in REFUSED]


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
