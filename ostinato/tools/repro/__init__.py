"""`ostinato repro`: bundles of a few operators with the values that they read, which show a fault without the model."""
