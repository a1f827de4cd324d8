"""What is published: the card, provenance, the checks of what was judged, and the release itself."""
