"""Hyper-parameter search on validation classes, and what fits into a budget."""
