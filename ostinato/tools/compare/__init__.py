"""`ostinato compare`: any ways to run a program side by side, and what the difference is where they do not agree."""
