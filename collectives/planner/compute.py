"""Seconds that kernels take: a roofline (Williams et al. 2009), and what is between the matrix products.

A product takes its operations at a share of the peak, or its bytes at the memory's bandwidth, whichever is longer; all
between takes the memory's time for what a layer keeps for backward, times a program's `passes`.
"""

from functools import cached_property, partial

from ..machines.gpu import gpu as gpu_of
from ..machines.topology import Machine
from .division import Division
from .memory import layer_activations
from .shape import Shape
from .software import Program

PLANNER = "the planner"  # needs a GPU's figures

# Fitted, see validation.py: a training step's products relative to the best product's speed.  Shapes are not the best ones,
# and in a long run the clock is lower.
IN_STEP = 0.79
# Assumed are:
FLASH = 0.6  # flash attention's speed relative to products'; on A100 at best 50 to 73% (arXiv 2307.08691)
# A product's tile: with that many rows, a product reaches half of a large one's speed; likewise with an expert of
# that width.
ROWS = 128


class Compute:
    """Seconds of one microbatch on a GPU of the fullest pipeline rank: `.forward`, and `.backward` with recomputing.

    products: the share of the peak that matrix products reach, 0 to 1; None for IN_STEP of gpus.csv's.
    """

    def __init__(
        self, model: Shape, division: Division, machine: Machine, program: Program, products: float | None = None
    ) -> None:
        figure = partial(gpu_of(machine.gpus.name).value, needed_by=PLANNER)
        self.rate = figure("peak") * (products or IN_STEP * figure("products"))
        self.bandwidth = figure("memory_bandwidth")
        self._model, self._division, self._program = model, division, program
        self.tokens = model.length / division.context * division.microbatch  # that a rank works on at a time
        layers, d = division.layers(model), division
        layer = self._attention_block + self.feed_forward + self._between("selective")
        logits = 4 * model.vocabulary * self.tokens / d.tensor  # bytes, in float32
        # Backward takes twice as long as forward, so both together take three times.
        ends = 3 * (
            self._product(model.embedding / d.tensor) + program.passes * logits / self.bandwidth
        )  # the output's
        pointwise = self._between("selective") - self._between("pointwise")
        again = {
            "none": 0.0,
            "selective": self.attention,
            "pointwise": pointwise,
            "mlp": pointwise + self.feed_forward + self._between("pointwise") - self._between("mlp"),
            "full": layer,
        }[d.recompute]
        self.forward = layers * layer
        self.backward = layers * (2 * layer + again) + ends / d.pipeline

    @cached_property
    def attention(self) -> float:
        """Seconds of a layer's attention forward: scores, softmax, the sum of values."""
        model, tensor, flash = self._model, self._division.tensor, self._program.flash
        flops = self.tokens * model.attention_flops(causal=flash) / tensor
        if flash:
            return flops / (self.rate * FLASH)
        kept = (4 + model.dropout) * model.heads * model.length * self.tokens / tensor
        return flops / self.rate + self._program.passes * kept / self.bandwidth

    @property
    def _attention_block(self) -> float:
        return self._product(self._model.attention_matrices / self._division.tensor) + self.attention

    @cached_property
    def feed_forward(self) -> float:
        """Seconds of a layer's feed-forward blocks forward: the blocks of every token, and the routed ones."""
        model, d = self._model, self._division
        seconds = self._product(model.block(model.dense_width) / d.tensor)
        if model.experts:
            whole = d.experts > 1  # experts, not cut by tensor ranks
            experts = model.experts / d.experts  # of a rank
            rows = self.tokens * model.active * (d.experts / d.tensor if whole else 1) / model.experts  # of an expert
            parameters = model.block(model.expert) / (1 if whole else d.tensor)
            width = model.expert / (1 if whole else d.tensor)
            narrow = (width + ROWS) / width
            seconds += model.routed * experts * narrow * self._product(parameters, rows)
        return seconds

    def _between(self, recompute: str) -> float:
        """Seconds of all between a layer's products forward, or of what recomputing like this keeps of it."""
        kept = layer_activations(self._model, self._division, recompute)
        return kept * self._program.passes / self.bandwidth

    def _product(self, parameters: float, rows: float | None = None) -> float:
        """Seconds of `rows` rows, None for all tokens, times a matrix of `parameters`."""
        rows = self.tokens if rows is None else rows
        return max(2 * parameters * (rows + ROWS) / self.rate, 2 * parameters / self.bandwidth)
