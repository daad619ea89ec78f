"""What a run is: the schema, YAML in and out, KEY=VALUE changes."""
