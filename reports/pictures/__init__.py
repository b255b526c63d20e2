"""The pictures of the page: one module per question, each with its drawing, its words and its table."""
