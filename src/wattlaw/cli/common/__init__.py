"""What several commands share: options, parsing, progress, the console."""
