"""What is shown of several runs, a file per command.

contrast      `specgate compare`: two runs
differences   in what two runs differ besides their figures
matrix        `specgate bench`: the same cells on several back ends
agreement     `specgate agree`: texts and acceptance of several engines beside the reference's
trends        `specgate history`: figures followed over runs
trend_chart   one figure over runs, drawn
"""
