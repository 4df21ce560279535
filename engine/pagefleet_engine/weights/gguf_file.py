"""A GGUF file as typed metadata and named tensors; every defect becomes one line that names the file.

Container parsing and dequantisation are the `gguf` package's. What the tensors mean is decided in `gguf_checkpoint`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from torch import Tensor

from pagefleet_engine.errors import StartupError
from pagefleet_engine.layers.packed import BlockWeights
from pagefleet_engine.weights.gguf_header import check_counts

_BROKEN = (ValueError, IndexError, KeyError, TypeError, ArithmeticError, MemoryError, RecursionError)
"""What the reader raises, by where a file is cut or garbled."""


class GgufFile:
    """An open file. Raises `StartupError` for anything that is missing, truncated or foreign."""

    def __init__(self, path: Path) -> None:
        self.path = path
        _check_magic(path)
        check_counts(path)
        try:
            with np.errstate(over="raise"):  # an offset that wraps would lead to other bytes of the file
                reader = gguf.GGUFReader(str(path))
        except _BROKEN as error:
            raise StartupError(
                f"{path}: truncated or damaged GGUF file ({_first_line(error)}); download it again"
            ) from error
        self._fields: Mapping[str, Any] = reader.fields
        self._tensors = {tensor.name: tensor for tensor in reader.tensors}

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of every tensor, rows first as torch has them."""
        return {name: tuple(int(n) for n in reversed(t.shape)) for name, t in self._tensors.items()}

    def tensor(self, name: str) -> Tensor:
        """One tensor dequantised to fp32. Raises `StartupError` for a quantisation that `gguf` cannot undo."""
        stored = self._tensors[name]
        try:
            values = gguf.dequantize(stored.data, stored.tensor_type)
        except (NotImplementedError, ValueError) as error:
            kind = stored.tensor_type.name
            raise StartupError(f"{self.path}: tensor {name} is stored as {kind}, which cannot be read") from error
        return torch.tensor(values, dtype=torch.float32)

    def block_weights(self, name: str) -> BlockWeights | None:
        """A Q4_1 matrix as it is stored, or None for any other kind of tensor.

        A block has 20 bytes: scale and minimum in fp16, then 16 bytes whose low nibbles are weights 0 to 15 and whose
        high nibbles are weights 16 to 31.
        """
        stored = self._tensors[name]
        if stored.tensor_type != gguf.GGMLQuantizationType.Q4_1 or len(stored.shape) != 2:
            return None
        blocks = torch.tensor(stored.data).view(int(stored.shape[1]), -1, 20)
        numbers = blocks[:, :, :4].contiguous().view(torch.float16).float()
        nibbles = blocks[:, :, 4:]
        codes = torch.cat((nibbles & 15, nibbles >> 4), dim=-1).flatten(1)
        return BlockWeights(codes, numbers[:, :, 0], numbers[:, :, 1])

    def get(self, key: str) -> Any:
        """A metadata value, or None when the file has no such key."""
        field = self._fields.get(key)
        return None if field is None else field.contents()

    def text(self, key: str) -> str:
        return str(self._required(key, str))

    def integer(self, key: str, default: int | None = None) -> int:
        if default is not None and self.get(key) is None:
            return default
        return int(self._required(key, int))

    def number(self, key: str, default: float | None = None) -> float:
        if default is not None and self.get(key) is None:
            return default
        # Stored as fp32: the shortest decimal that rounds to it is what the author wrote, 1e-05 and not 9.9999997e-06.
        return float(str(np.float32(self._required(key, (int, float)))))

    def strings(self, key: str) -> list[str]:
        return list(self._required(key, list))

    def _required(self, key: str, kind: type | tuple[type, ...]) -> Any:
        value = self.get(key)
        if not isinstance(value, kind):
            found = "is missing" if value is None else f"is {type(value).__name__}"
            raise StartupError(f"{self.path}: metadata {key} {found}; the file is not a model that this engine can run")
        return value


def _check_magic(path: Path) -> None:
    try:
        with path.open("rb") as file:
            magic = file.read(4)
    except OSError as error:
        raise StartupError(f"--model {path}: {error.strerror or error}") from error
    if magic != b"GGUF":
        raise StartupError(f"--model {path}: not a GGUF file (it starts with {magic!r})")


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:120]
