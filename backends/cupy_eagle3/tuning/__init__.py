"""Which configuration of the product kernel belongs to which weight, on which device, and how it is found."""
