"""Where results live: plain files in one folder, safe against processes that die."""
