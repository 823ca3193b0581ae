"""Evidence: records that say which implementation rows are right where, and how fast programs ran with them."""
