"""Devices: implementation rows, the native extension, and the host device the runtime is handed."""
