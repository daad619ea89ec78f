"""Hyper-parameter search on validation classes."""
