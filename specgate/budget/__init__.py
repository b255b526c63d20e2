"""What a cycle is made of, what it must move, and how fast it could be."""
