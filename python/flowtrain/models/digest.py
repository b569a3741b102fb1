"""Digest of the weights of a module."""

from __future__ import annotations

from hashlib import sha256

import torch


def weights_digest(module: torch.nn.Module) -> str:
    """SHA-256 of names, dtypes, shapes and values of all parameters and stored buffers."""
    digest = sha256()
    for name, tensor in sorted(module.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        values = tensor.detach().cpu().contiguous().view(-1).view(torch.uint8)
        digest.update(values.numpy().data)
    return digest.hexdigest()
