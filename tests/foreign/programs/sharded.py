"""fully_shard on a mesh, its gradients clipped, its state saved by DCP while training goes on, and loaded again."""

import tempfile

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

dist.init_process_group("cpu:gloo")
mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("dp",))
torch.manual_seed(0)
model = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(3)))
for layer in model:
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
torch.manual_seed(dist.get_rank())


def step():
    loss = model(torch.randn(4, 8)).square().mean()
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()
    optimizer.zero_grad()
    return loss.item().hex(), norm.full_tensor().item().hex()


folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
dist.broadcast_object_list(folder)
print(step(), step(), flush=True)
saved = dcp.async_save(get_model_state_dict(model), checkpoint_id=folder[0])
saved.result()
print(step(), flush=True)
state = get_model_state_dict(model)
dcp.load(state, checkpoint_id=folder[0])
set_model_state_dict(model, state)
print(sum(p.full_tensor().double().sum().item() for p in model.parameters()).hex(), flush=True)
dist.destroy_process_group()
