"""The machine that is measured on."""
