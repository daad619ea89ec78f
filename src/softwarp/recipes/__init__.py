"""Recipes that ship with softwarp: YAML, one file = one claim; the tables of the paper; its appendix D."""
