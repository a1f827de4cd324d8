"""How fast this project trains, measured beside what people would use instead. See bench/README.md."""
