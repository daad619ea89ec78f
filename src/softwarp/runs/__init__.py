"""What a run leaves on disk, and what is read from it."""
