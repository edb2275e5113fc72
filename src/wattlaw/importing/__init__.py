"""Files of other tools into a store: one importer for each format."""
