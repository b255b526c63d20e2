"""`python -m specgate`."""

from specgate.cli import main

if __name__ == "__main__":
    main()
