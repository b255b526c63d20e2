"""The documents by task, followed by a machine: what a stranger installs, types and copies.

conftest.py         the wheel of this checkout, unpacked, and the commands `specgate` and `python` that run from it
test_wheel.py       the wheel has what the checkout has, and works without it
test_two_wheels.py  the harness and the engine's house as two wheels; the harness without the other
test_container.py   the Containerfile: what it copies, its arguments, its shell
"""
