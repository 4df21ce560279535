"""A model that answers in milliseconds, for the measurements."""

from pagefleet_cli.bench.models import Model
from pagefleet_engine.testing import ByteTokenizer, tiny_decoder


def tiny_model():
    """A function of its own, for workers that are other processes."""
    return Model(name="tiny", decoder=tiny_decoder(seed=3), tokenizer=ByteTokenizer())


TINY = tiny_model()
TEXT = "The quick brown fox jumps over the lazy dog, again and again; " * 20


def tokens(count):
    return TINY.tokenizer.encode(TEXT, add_special_tokens=False)[:count]
