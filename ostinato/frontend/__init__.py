"""Model code, checkpoints, tokenizers: everything that turns what users bring into a graph."""
