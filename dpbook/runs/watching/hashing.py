"""Hashes of tensors: ranks are compared without a byte of the model or the data leaving a rank."""

import functools
import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

CHUNK = 2**20
"""Words of 8 bytes that are hashed at once; also the number of weights."""
SAMPLED = 1024
"""Elements of an example that its hash reads, about; they are evenly spread if it has more."""

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_WORD = 8
_MODULUS = 2**64
_PRIME = 0x9E3779B97F4A7C15


def digests(tensors: Mapping[str, torch.Tensor]) -> dict[str, str]:
    """Return a hash of 64 bits for the bits of each tensor; sparse tensors and those without data are left out.

    The hash is the weighted sum of the words of 8 bytes, modulo 2⁶⁴. A GPU sends one number per chunk of a tensor.
    """
    hashes: dict[str, str] = {}
    for name, tensor in tensors.items():
        local = local_part(tensor).detach()
        if local.layout == torch.strided and local.device.type != "meta":
            flat = (torch.view_as_real(local) if local.is_complex() else local).contiguous().view(-1)
            total = _on_cpu(flat) if flat.device.type == "cpu" else _on_device(flat)
            hashes[name] = f"{total % _MODULUS:016x}"
    return hashes


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
    """Return a hash computed on the device; it differs from that of the CPU, as it weights the last elements too."""
    if flat.storage_offset() * flat.element_size() % _WORD:
        flat = flat.clone()
    whole = len(flat) - len(flat) % (_WORD // flat.element_size())
    words = flat[:whole].view(torch.int64).split(CHUNK) if whole else ()
    rest = flat[whole:].view(_INTEGERS[flat.element_size()]).to(torch.int64)
    weights = _weights_on(flat.device)
    sums = torch.stack([(part * weights[: len(part)]).sum() for part in (rest, *words)]).tolist()
    return functools.reduce(lambda total, number: total * _PRIME + number, sums, 0)


@functools.cache
def _weights() -> npt.NDArray[np.int64]:
    """Return random odd weights: a change of one element always changes the hash, several nearly always do."""
    return np.random.default_rng(0).integers(-(2**62), 2**62, CHUNK) * 2 + 1


@functools.cache
def _weights_on(device: torch.device) -> torch.Tensor:
    return torch.from_numpy(_weights()).to(device)


def rows(tensors: Iterable[torch.Tensor]) -> list[str]:
    """Return a hash of each example of a batch, over its rows in all ``tensors`` that are as long as the first."""
    batch = [local_part(each).detach() for each in tensors if each.dim() and each.layout == torch.strided and len(each)]
    if not batch:
        return []
    parts = [_sampled(tensor) for tensor in batch if len(tensor) == len(batch[0])]
    return short(b"".join(row) for row in zip(*parts, strict=True))


def _sampled(tensor: torch.Tensor) -> list[bytes]:
    """Return bytes of about `SAMPLED` elements of each example."""
    flat = tensor.reshape(len(tensor), tensor[:1].numel())
    flat = flat[:, :: max(1, flat.shape[1] // SAMPLED)].contiguous().cpu()
    if flat.is_complex():
        flat = torch.view_as_real(flat).reshape(len(flat), -1)
    return [row.tobytes() for row in flat.view(torch.uint8).numpy()] if flat.shape[1] else [b""] * len(flat)


def short(pieces: Iterable[bytes]) -> list[str]:
    """Return a hash of 48 bits for each piece."""
    return [hashlib.blake2b(piece, digest_size=6).hexdigest() for piece in pieces]


def random_state(device: torch.device) -> str:
    """Return a hash of the state of the random generator that a model on ``device`` uses."""
    state = torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()
    return short([state.numpy().tobytes()])[0]


def is_sharded(tensor: torch.Tensor) -> bool:
    """Whether each rank has a part of a parameter: a `DTensor`, or what torch's first FSDP has flattened."""
    flattened = getattr(tensor, "_is_flat_param", False) or getattr(tensor, "_fsdp_flattened", False)
    return hasattr(tensor, "to_local") or bool(flattened)


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """Return this rank's part of a sharded tensor (a DTensor), or the tensor itself."""
    to_local: Any = getattr(tensor, "to_local", None)
    part: torch.Tensor = to_local() if to_local is not None else tensor
    return part
