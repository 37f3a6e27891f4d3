"""What is written for the user: the artifact's folder, its manifest and its self-test."""
