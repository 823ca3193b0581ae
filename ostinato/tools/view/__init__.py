"""Pictures: a graph with its repeated layers drawn once, and the arena over time. What is drawn is a value of the pipeline; nothing here runs a model."""
