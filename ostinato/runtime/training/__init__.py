"""Training: what runs a whole step, what feeds it and what keeps it."""
