# needs: omegaconf
from loop import train
from omegaconf import OmegaConf

config = OmegaConf.merge({"lr": 0.1, "steps": 2, "half": "${lr}"}, OmegaConf.from_cli())
train(config.half, config.steps)
