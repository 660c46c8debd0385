"""Figures and HTML pages of plain result objects."""
