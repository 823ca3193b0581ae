"""`ostinato audit` and `ostinato.audit`: what captured graphs and step tables were given, ours and those of torch."""
