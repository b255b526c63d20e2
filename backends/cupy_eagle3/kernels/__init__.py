"""One `.cu` and one launcher of the same stem per kernel. Nothing here imports anything from above this folder."""
