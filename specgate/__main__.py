"""`python -m specgate`, and the script `specgate`."""


def main() -> None:
    # Processes that a run starts import this module again, and need nothing of the command line.
    from specgate.cli import main as command_line

    command_line()


if __name__ == "__main__":
    main()
