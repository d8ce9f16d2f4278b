"""Tensors as short numbers, so that ranks may be compared without a byte of the model or the data leaving a rank."""

import functools
import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

CHUNK = 2**20
"""Words of 8 bytes that are hashed at once; there are as many weights."""
SAMPLED = 1024
"""Elements of an example that its hash reads: evenly spread where it has more."""

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_WORD = 8
_MODULUS = 2**64
_PRIME = 0x9E3779B97F4A7C15


def digests(tensors: Mapping[str, torch.Tensor]) -> dict[str, str]:
    """A hash of the bits of each tensor, of 64 bits; those that are sparse or without data are left out.

    It is a sum of the words of 8 bytes, each times a weight, modulo 2⁶⁴. From a GPU one number a tensor is fetched.
    """
    found: dict[str, str] = {}
    for name, tensor in tensors.items():
        local = local_part(tensor).detach()
        if local.layout == torch.strided and local.device.type != "meta":
            flat = (torch.view_as_real(local) if local.is_complex() else local).contiguous().view(-1)
            total = _on_cpu(flat) if flat.device.type == "cpu" else _on_device(flat)
            found[name] = f"{total % _MODULUS:016x}"
    return found


def _on_cpu(flat: torch.Tensor) -> int:
    data = flat.view(torch.uint8).numpy()
    whole = len(data) - len(data) % _WORD
    words = data[:whole].view(np.int64)
    total = int.from_bytes(data[whole:].tobytes(), "little")
    for begin in range(0, len(words), CHUNK):
        part = words[begin : begin + CHUNK]
        total = total * _PRIME + int(np.dot(part, _weights()[: len(part)]))
    return total


def _on_device(flat: torch.Tensor) -> int:
    """The same for whole words; the elements after them are weighted too. Not to be compared with a hash of the CPU."""
    if flat.storage_offset() * flat.element_size() % _WORD:
        flat = flat.clone()
    whole = len(flat) - len(flat) % (_WORD // flat.element_size())
    words = flat[:whole].view(torch.int64).split(CHUNK) if whole else ()
    rest = flat[whole:].view(_INTEGERS[flat.element_size()]).to(torch.int64)
    weights = _weights_on(flat.device)
    sums = torch.stack([(part * weights[: len(part)]).sum() for part in (rest, *words)])
    total = 0
    for number in sums.tolist():
        total = total * _PRIME + number
    return total


@functools.cache
def _weights() -> npt.NDArray[np.int64]:
    """Odd numbers without a pattern: a change of one element always shows, changes of several nearly always."""
    return np.random.default_rng(0).integers(-(2**62), 2**62, CHUNK) * 2 + 1


@functools.cache
def _weights_on(device: torch.device) -> torch.Tensor:
    return torch.from_numpy(_weights()).to(device)


def rows(tensors: Iterable[torch.Tensor]) -> list[str]:
    """A hash of each example of a batch: of its slices of all ``tensors`` that have the length of the first."""
    batch = [local_part(each).detach() for each in tensors if each.dim() and each.layout == torch.strided and len(each)]
    if not batch:
        return []
    length = len(batch[0])
    parts = [_sampled(tensor) for tensor in batch if len(tensor) == length]
    return short(b"".join(row) for row in zip(*parts, strict=True))


def _sampled(tensor: torch.Tensor) -> list[bytes]:
    flat = tensor.reshape(len(tensor), tensor[:1].numel())
    flat = flat[:, :: max(1, flat.shape[1] // SAMPLED)].contiguous().cpu()
    if flat.is_complex():
        flat = torch.view_as_real(flat).reshape(len(flat), -1)
    return [row.tobytes() for row in flat.view(torch.uint8).numpy()] if flat.shape[1] else [b""] * len(flat)


def short(pieces: Iterable[bytes]) -> list[str]:
    """A hash of 48 bits of each piece."""
    return [hashlib.blake2b(piece, digest_size=6).hexdigest() for piece in pieces]


def random_state(device: torch.device) -> str:
    """A hash of the state of the generator that a model on ``device`` draws from."""
    state = torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()
    return short([state.numpy().tobytes()])[0]


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part of a tensor that is spread over ranks (a DTensor), or the tensor."""
    to_local: Any = getattr(tensor, "to_local", None)
    part: torch.Tensor = to_local() if to_local is not None else tensor
    return part
