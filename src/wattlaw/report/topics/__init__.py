"""One module per topic of the report: its sentences, tables and figures.

``core_sections.py`` makes sections of them.
"""
