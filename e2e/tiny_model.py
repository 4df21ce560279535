"""A Llama with random weights that loads in a moment and fits a ConfigMap, for stories in which load matters, not text.

Its tokenizer has one token per byte. The same seed gives the same weights.
"""

from __future__ import annotations

import base64
import json
import tempfile
from functools import cache
from pathlib import Path
from typing import Any, Final

from e2e.kube import Kube

FOLDER: Final = "/models/tiny"
URI: Final = f"file://{FOLDER}"
SPECIAL: Final = ("<s>", "</s>", "<user>", "<assistant>")
TEMPLATE: Final = "{% for message in messages %}<user>{{ message['content'] }}{% endfor %}<assistant>"
CONTEXT: Final = 4096


@cache
def files() -> dict[str, bytes]:
    """The model's files by name."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _write_weights(folder)
        _write_tokenizer(folder)
        return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def put(kube: Kube, name: str, namespace: str) -> None:
    """Make the ConfigMap `name` with the model's files. Applied by the server: they are too many for an annotation."""
    config_map = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": namespace},
        "binaryData": {file: base64.b64encode(content).decode() for file, content in files().items()},
    }
    kube.kubectl("apply", "--server-side", "-f", "-", stdin=json.dumps(config_map))


def mounted(name: str) -> dict[str, Any]:
    """The part of `spec.pod` that mounts the ConfigMap `name` where `URI` points to."""
    return {
        "volumes": [{"name": "model", "configMap": {"name": name}}],
        "volumeMounts": [{"name": "model", "mountPath": FOLDER, "readOnly": True}],
    }


def _write_weights(folder: Path) -> None:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=256 + len(SPECIAL),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        bos_token_id=256,
        eos_token_id=257,
    )
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)


def _write_tokenizer(folder: Path) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={text: index for index, text in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in SPECIAL])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"bos_token": "<s>", "eos_token": "</s>", "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
