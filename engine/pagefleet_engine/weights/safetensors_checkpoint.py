"""A Hugging Face folder of safetensors files as a `Checkpoint`."""

from __future__ import annotations

from pathlib import Path

from safetensors import SafetensorError, safe_open
from torch import Tensor

from pagefleet_engine.errors import StartupError
from pagefleet_engine.weights.choice import weight_files
from pagefleet_engine.weights.hf_config import read_hf_config

_COMPUTED = ".rotary_emb.inv_freq"
"""Old checkpoints store what follows from the configuration."""


class SafetensorsCheckpoint:
    """The `*.safetensors` files of a folder; tensors are read when asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config = read_hf_config(folder)
        self._home: dict[str, Path] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        for name in weight_files([path.name for path in folder.glob("*.safetensors")]):
            self._index(folder / name)
        if self.config.tied_embeddings:
            # Some writers repeat the embedding as the head.
            self.shapes.pop("lm_head.weight", None)

    @property
    def source(self) -> str:
        return str(self.folder)

    def tensor(self, name: str) -> Tensor:
        with safe_open(self._home[name], framework="pt") as opened:
            found: Tensor = opened.get_tensor(name)
            return found

    def block_weights(self, name: str) -> None:
        """There are none in this format."""
        return None

    def _index(self, file: Path) -> None:
        try:
            with safe_open(file, framework="pt") as opened:
                for name in opened.keys():  # noqa: SIM118  no mapping: it has `keys` and nothing else
                    if name.endswith(_COMPUTED):
                        continue
                    if name in self._home:
                        raise StartupError(f"{file}: tensor {name} is in {self._home[name].name} too")
                    self._home[name] = file
                    self.shapes[name] = tuple(opened.get_slice(name).get_shape())
        except (SafetensorError, OSError) as error:
            raise StartupError(f"{file}: truncated or damaged safetensors file ({error}); download it again") from error
