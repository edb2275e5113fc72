"""The command line: ``app`` lists the commands, ``commands`` has one module for each."""
