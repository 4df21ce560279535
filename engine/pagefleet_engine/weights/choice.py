"""Which files of a folder or a repository are the model. Names only; nothing is read.

A model is data: weights as safetensors or GGUF, settings as JSON, a chat template as Jinja. Code and pickles, which a
repository may hold as well, are never among them.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

_SETTINGS: Final = (".json", ".jinja")
_SHOWN: Final = 6


def weight_files(names: Collection[str]) -> list[str]:
    """The safetensors files to read. Some authors add a second copy of all weights under another name."""
    found = sorted(name for name in names if name.endswith(".safetensors"))
    return [name for name in found if name.startswith("model")] or found


def model_files(names: Collection[str], file: str | None = None) -> list[str]:
    """What to download of a repository; a single GGUF file comes alone. `file` names one that is wanted.

    Raises `ValueError` that says what there is instead of a model.
    """
    if file is not None:
        if file in names:
            return [file]
        raise ValueError(f"there is no file {file} in it{_listed(_gguf(names))}")
    top = [name for name in names if "/" not in name]
    weights = weight_files(top)
    if weights and "config.json" in top:
        return sorted([*weights, *(name for name in top if name.endswith(_SETTINGS))])
    found = _gguf(top)
    if len(found) == 1:
        return found
    if found:
        raise ValueError(f"name one of its GGUF files, as in hf://owner/name/{found[0]}{_listed(found)}")
    raise ValueError(
        "it has neither config.json with .safetensors files nor a .gguf file at its top, and nothing else is loaded"
    )


def _gguf(names: Collection[str]) -> list[str]:
    return sorted(name for name in names if name.endswith(".gguf"))


def _listed(names: list[str]) -> str:
    if not names:
        return ""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"; there are {', '.join(names[:_SHOWN])}{more}"
