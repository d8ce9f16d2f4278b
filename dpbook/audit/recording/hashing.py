"""Tensors as short numbers, so that ranks may be compared without a byte of the model or the data leaving a rank."""

import functools
import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

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

    One number is fetched from the device for all of them.
    """
    hashed = {name: parts for name, tensor in tensors.items() if (parts := _parts(tensor)) is not None}
    if not hashed:
        return {}
    flat = [part for parts in hashed.values() for part in parts]
    by_device: dict[torch.device, list[int]] = {}
    for place, part in enumerate(flat):
        by_device.setdefault(part.device, []).append(place)
    numbers = [0] * len(flat)
    for places in by_device.values():
        fetched = torch.stack([flat[place] for place in places]).tolist()
        for place, number in zip(places, fetched, strict=True):
            numbers[place] = number
    rest = iter(numbers)
    return {name: _joined(next(rest) for _ in parts) for name, parts in hashed.items()}


def _parts(tensor: torch.Tensor) -> list[torch.Tensor] | None:
    """The weighted sum of the bits of each chunk, modulo 2⁶⁴."""
    local = local_part(tensor).detach()
    if local.layout != torch.strided or local.device.type == "meta":
        return None
    if local.is_complex():
        local = torch.view_as_real(local)
    flat = local.contiguous().view(-1)
    if flat.storage_offset() * flat.element_size() % _WORD:
        flat = flat.clone()
    whole = len(flat) - len(flat) % (_WORD // flat.element_size())
    words = [*flat[:whole].view(torch.int64).split(CHUNK)] if whole else []
    rest = flat[whole:].view(_INTEGERS[flat.element_size()]).to(torch.int64)
    return [_weighted(part) for part in (*words, rest)]


def _weighted(words: torch.Tensor) -> torch.Tensor:
    weights = _weights(words.device)[: len(words)]
    return torch.dot(words, weights) if words.device.type == "cpu" else (words * weights).sum()


@functools.cache
def _weights(device: torch.device) -> torch.Tensor:
    """Odd numbers without a pattern: a change of one element always shows, changes of several nearly always."""
    random = torch.Generator().manual_seed(0)
    return (torch.randint(-(2**62), 2**62, (CHUNK,), generator=random) * 2 + 1).to(device)


def _joined(numbers: Iterable[int]) -> str:
    total = 0
    for number in numbers:
        total = (total * _PRIME + number) % _MODULUS
    return f"{total:016x}"


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
