"""Train with Ray Train's TorchTrainer, and record each rank for a report or an audit of dpbook.

    python scripts/train_with_ray.py --workers 2 --recording runs/ray
    dpbook report runs/ray

With --audit the ranks record what ``dpbook audit --read runs/ray`` judges. It needs ``pip install "ray[train]"``, and a
folder that all workers see. Without dpbook it is a script for Ray like any other: replace `train` by `_train`.
"""

import argparse
from pathlib import Path
from typing import Any

import ray.train
import torch
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer, prepare_data_loader, prepare_model
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def train(config: dict[str, Any]) -> None:
    """Train on one rank, and record it. Ray has made the process group."""
    from dpbook.runs.watching import recording

    with recording(config["recording"], audit=config["audit"], **config["options"]):
        _train(config)


def _train(config: dict[str, Any]) -> None:
    """Train. Ray wraps the model in DDP, and gives each rank its own data."""
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(960, 32), torch.randint(10, (960,)))
    loader = prepare_data_loader(DataLoader(data, batch_size=config["batch"], shuffle=True))
    model = prepare_model(nn.Sequential(nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 10)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for epoch in range(config["epochs"]):
        if ray.train.get_context().get_world_size() > 1:
            loader.sampler.set_epoch(epoch)
        for x, y in loader:
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        ray.train.report({"loss": loss.item()})


def main() -> None:
    """Start the workers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--gpu", action="store_true", help="a GPU for each worker")
    parser.add_argument("--batch", type=int, default=32, help="of each rank")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--recording", type=Path, default=Path("runs/ray"), help="folder that all workers see")
    parser.add_argument("--audit", action="store_true", help="record for an audit, not for a report")
    chosen = parser.parse_args()
    config = {
        "batch": chosen.batch, "epochs": chosen.epochs, "recording": str(chosen.recording.resolve()),
        "audit": chosen.audit, "options": {"updates": 0, "replay": 1} if chosen.audit else {"sampled": True},
    }  # fmt: skip
    scaling = ScalingConfig(num_workers=chosen.workers, use_gpu=chosen.gpu)
    storage = str(chosen.recording.resolve() / "ray")
    run = RunConfig(storage_path=storage)
    TorchTrainer(train, train_loop_config=config, scaling_config=scaling, run_config=run).fit()
    print(f"recorded in {chosen.recording}")


if __name__ == "__main__":
    main()
