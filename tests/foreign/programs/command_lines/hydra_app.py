# needs: hydra
from dataclasses import dataclass, field

import hydra
from hydra.core.config_store import ConfigStore
from loop import train
from omegaconf import MISSING, OmegaConf


@dataclass
class Optimizer:
    lr: float = 0.1


@dataclass
class Config:
    optimizer: Optimizer = field(default_factory=Optimizer)
    steps: int = MISSING


ConfigStore.instance().store(name="config", node=Config)


@hydra.main(version_base=None, config_name="config")
def main(config):
    print(OmegaConf.to_container(config), flush=True)
    train(config.optimizer.lr, config.steps)


if __name__ == "__main__":
    main()
