"""One module per topic of the report: its tables, and its sentences in the summary."""
