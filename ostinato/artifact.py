"""Saved executables: `Executable.save` writes one file, `load_executable` makes an executable of it again. The parts are in `saving/`."""

from __future__ import annotations

from ostinato.saving.read import Artifact, is_artifact, read_artifact

__all__ = ["Artifact", "is_artifact", "read_artifact"]
