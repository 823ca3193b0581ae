"""Loading a plan and executing it: regions, weights, the three modes, batches and generation. A device is handed in, never imported."""
