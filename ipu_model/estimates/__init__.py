"""What a device job will need, worked out before anything compiles or trains: memory, and time. Imports no torch."""
