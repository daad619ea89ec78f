"""Verification of faces: pairs, templates."""
