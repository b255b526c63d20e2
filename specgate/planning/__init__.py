"""What is going to be measured."""
