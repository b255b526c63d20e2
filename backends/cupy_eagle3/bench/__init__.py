"""Every kernel of a step on its own: what it must move, whether it is right, how long it takes, beside what."""
