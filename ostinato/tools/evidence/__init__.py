"""`ostinato evidence`: the ledger for people, and the measurements that add to it."""
