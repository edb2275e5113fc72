"""One module per topic of the report: its sentences, tables and figures.

``layouts.py`` puts them in order, ``figures.py`` names the figures.
"""
