"""A server under load: what a level is worth, and where speculation stops paying."""
