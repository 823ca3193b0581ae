"""Passes: graph in, graph out. `pipeline.py` lists them on one screen, `runner.py` runs them."""
