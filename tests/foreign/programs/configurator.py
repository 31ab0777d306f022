"""Settings are the module's globals; "--name=value" overrides each, as in many a small repository."""

import ast
import os
import sys

import torch
import torch.distributed as dist

learning_rate = 0.05
max_iters = 3
batch_size = 4
backend = "gloo"
config_keys = [k for k, v in globals().items() if not k.startswith("_") and isinstance(v, (int, float, bool, str))]
for argument in sys.argv[1:]:
    key, value = argument.removeprefix("--").split("=")
    try:
        value = ast.literal_eval(value)
    except (SyntaxError, ValueError):
        pass
    assert type(value) is type(globals()[key]), key
    globals()[key] = value
config = {key: globals()[key] for key in config_keys}

dist.init_process_group(backend)
torch.manual_seed(int(os.environ["RANK"]))
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(6, 3))
optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate)
for step in range(max_iters):
    loss = model(torch.randn(batch_size, 6)).square().mean()
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    print(step, loss.item().hex(), norm.item().hex(), flush=True)
print(config)
dist.destroy_process_group()
