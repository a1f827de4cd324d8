"""TODO tasks/inputs."""
