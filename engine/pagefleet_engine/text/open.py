"""The tokenizer that belongs to a checkpoint, wherever its format keeps it."""

from __future__ import annotations

from pagefleet_engine.errors import StartupError
from pagefleet_engine.text.gguf_tokenizer import load_gguf_tokenizer
from pagefleet_engine.text.hf_tokenizer import load_hf_tokenizer
from pagefleet_engine.text.tokenizer import BpeTokenizer
from pagefleet_engine.weights.checkpoint import Checkpoint
from pagefleet_engine.weights.gguf_checkpoint import GgufCheckpoint
from pagefleet_engine.weights.safetensors_checkpoint import SafetensorsCheckpoint


def open_tokenizer(checkpoint: Checkpoint) -> BpeTokenizer:
    """Raises `StartupError` for a tokenizer that is missing, broken or of a kind that we do not have."""
    if isinstance(checkpoint, GgufCheckpoint):
        return load_gguf_tokenizer(checkpoint.file)
    if isinstance(checkpoint, SafetensorsCheckpoint):
        return load_hf_tokenizer(checkpoint.folder, vocab_size=checkpoint.config.vocab_size)
    raise StartupError(f"{checkpoint.source}: no tokenizer belongs to this kind of checkpoint")
