"""Indexes of images: build, search, update, insights, vector databases."""
