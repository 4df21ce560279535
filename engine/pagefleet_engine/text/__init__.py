"""Text to ids and back: tokenizer, chat template, incremental detokeniser, stop strings."""
