"""Graphs of a GPU that somebody else captured: read node by node through a driver, and audited against the allocator that its memory came from."""
