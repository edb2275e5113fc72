"""Numbers that others published, with their sources: small tables that ship with the package."""
