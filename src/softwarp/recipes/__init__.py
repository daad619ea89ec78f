"""Recipes that ship with softwarp: YAML, one file = one claim; tables of the paper; reality_check/: its appendix D."""
