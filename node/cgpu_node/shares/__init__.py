"""Who has which share of which GPU: records, admission, changes."""
