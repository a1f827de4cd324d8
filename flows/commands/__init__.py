"""Commands of `podium`, one module each: parse the arguments, call the library, print the result."""
