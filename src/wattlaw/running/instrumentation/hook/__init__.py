"""What runs inside of the user's script: standard library only, Python 3.9 or later."""
