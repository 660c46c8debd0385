"""Pictures and pages about plain result objects."""
