"""Executables as files: what an artifact holds, how it is written, read and checked. `ostinato/artifact.py` wires it."""
