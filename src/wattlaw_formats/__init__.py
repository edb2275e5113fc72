"""Importers and exporters of other tools' formats."""
