"""What every package uses: errors, files, text, quantities, processes."""
