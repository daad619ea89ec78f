"""One file per command: options in, events and tables out, nothing else."""
