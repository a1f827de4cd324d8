"""What every stage needs: parameters and their defaults, paths, errors, intact files, the limits of a process."""
