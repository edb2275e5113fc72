"""Pictures, tables and one self-contained page, from analysis results only."""
