"""From a TOML file to a folder of results."""
