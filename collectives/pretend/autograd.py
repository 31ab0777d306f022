"""How a result follows from tensors that require a gradient, and the backward pass."""

from __future__ import annotations

from functools import wraps
from typing import Any, Callable, NamedTuple, Sequence

from .dtypes import Absent
from .tensor import Tensor, new

Backward = Callable[[Tensor], Sequence["Tensor | None"]]  # a result's gradient -> the gradients of its inputs


class Node(NamedTuple):
    """How a result was computed."""

    inputs: tuple[Tensor, ...]
    backward: Backward | None  # None: it was called, and what it needs is gone


class Following:
    """Whether results follow their inputs: torch.no_grad and torch.enable_grad set it, as a context or a decorator."""

    on = True

    def __init__(self, on: bool) -> None:
        self._on, self._before = on, [True]

    def __enter__(self) -> None:
        self._before.append(Following.on)
        Following.on = self._on

    def __exit__(self, *_: Any) -> None:
        Following.on = self._before.pop()

    def __call__(self, function: Callable) -> Callable:
        @wraps(function)
        def called(*args, **kwargs):
            with Following(self._on):
                return function(*args, **kwargs)

        return called


def follow(result: Tensor, inputs: Sequence[Tensor], backward: Backward) -> Tensor:
    """The result, which now remembers how it was computed if any input requires a gradient."""
    if Following.on and any(x.requires_grad for x in inputs) and result.dtype.is_floating_point:
        result.requires_grad, result.node = True, Node(tuple(inputs), backward)
    return result


def follow_choice(base: Tensor, result: Tensor, chosen: Sequence[int]) -> Tensor:
    """A result that is elements of a tensor.  chosen: their numbers."""

    def backward(gradient: Tensor) -> list[Tensor]:
        sums = [0.0] * base.numel()
        for k, value in zip(chosen, gradient.peek()):
            sums[k] += value
        return [new(sums, base.shape, base.dtype)]

    return follow(result, [base], backward)


def follow_view(base: Tensor, view: Tensor) -> Tensor:
    """A view of a tensor's memory."""
    if not (Following.on and base.requires_grad):
        return view
    numbers = {spot: k for k, spot in enumerate(base.places())}
    return follow_choice(base, view, [numbers[spot] for spot in view.places()])


def writes_into(target: Tensor) -> None:
    """Called before the program writes into a tensor.  Raises what torch raises for a leaf that requires a gradient."""
    if Following.on and target.requires_grad:
        if target.node is None:
            raise RuntimeError("a leaf Variable that requires grad is being used in an in-place operation.")
        raise Absent("this page has no in-place operation on a tensor that follows from one with a gradient")


def backward(
    result: Tensor, gradient: Tensor | None = None, retain_graph: Any = None, create_graph: bool = False
) -> None:
    """Tensor.backward: add to `.grad` of each leaf that the result follows from."""
    if create_graph:
        raise Absent("this page has no backward(create_graph=True)")
    if not result.requires_grad:
        raise RuntimeError("element 0 of tensors does not require grad and does not have a grad_fn")
    if gradient is None:
        if result.numel() != 1:
            raise RuntimeError("grad can be implicitly created only for scalar outputs")
        gradient = new([1.0], result.shape, result.dtype)
    sums: dict[int, Tensor] = {id(result): gradient.detach()}
    with Following(False):
        for tensor in _ordered(result):
            gradient_of_it = sums.pop(id(tensor), None)
            if gradient_of_it is None:
                continue
            if tensor.node is None:
                tensor.grad = gradient_of_it.clone() if tensor.grad is None else tensor.grad.add_(gradient_of_it)
                continue
            if tensor.node.backward is None:
                raise Absent("this page has no second backward() through what one has been through")
            parts = tensor.node.backward(gradient_of_it)
            if not retain_graph:
                tensor.node = tensor.node._replace(backward=None)
            for x, part in zip(tensor.node.inputs, parts):
                if part is not None and x.requires_grad:
                    sums[id(x)] = sums[id(x)] + part if id(x) in sums else part


def _ordered(result: Tensor) -> list[Tensor]:
    """All tensors that a result follows from, each before those that it was made of."""
    order: list[Tensor] = []
    visited: set[int] = set()
    open_ = [(result, False)]
    while open_:
        tensor, finished = open_.pop()
        if finished:
            order.append(tensor)
        elif id(tensor) not in visited:
            visited.add(id(tensor))
            open_.append((tensor, True))
            if tensor.node is not None:
                open_ += [(x, False) for x in tensor.node.inputs if x.requires_grad]
    return order[::-1]
