"""Whole training steps side by side with torch; see `__main__.py`."""
