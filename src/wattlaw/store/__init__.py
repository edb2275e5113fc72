"""The store: results as plain files in one folder, safe against processes that die."""
