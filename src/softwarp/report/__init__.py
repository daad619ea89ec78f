"""Run folders and studies -> one self-contained HTML file."""
