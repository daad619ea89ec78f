"""softwarp."""
