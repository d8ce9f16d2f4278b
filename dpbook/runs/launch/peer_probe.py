"""Do messages between the accelerators of this machine arrive? `check_peers` runs this.

In a process of its own, ``python -m dpbook.runs.launch.peer_probe``, which can be ended: a message that never
arrives stops whoever waits for it.
"""

from itertools import combinations

import torch

NUMBERS = 2**20
"""In a message; 4 MiB of them."""


def main() -> None:
    """Print a line for each pair of devices: their numbers, before the messages go, and then how these arrived."""
    kind = torch.accelerator.current_accelerator()
    devices = [torch.device(kind, number) for number in range(torch.accelerator.device_count())] if kind else []
    for here, there in combinations(devices, 2):
        print(here.index, there.index, end=" ", flush=True)
        print("right" if comes_back(here, there) else "wrong", flush=True)


def comes_back(here: torch.device, there: torch.device) -> bool:
    """Whether a message from one device to the other, sent back from there, is what it was."""
    sent = torch.randint(1, 2**31 - 1, (NUMBERS,), dtype=torch.int32)  # what no memory holds by chance
    back = carried(carried(sent.to(here), there), here)
    return bool(torch.equal(back.cpu(), sent))


def carried(message: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A copy on ``device``, in memory that has held zeros: a message that is lost must not find its bits there."""
    return torch.zeros_like(message, device=device).copy_(message)


if __name__ == "__main__":
    main()
