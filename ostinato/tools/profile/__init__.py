"""Profiles of steps against what the machine can do, and whether a captured graph pays."""
