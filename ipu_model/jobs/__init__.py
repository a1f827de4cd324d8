"""What a device job is told and answers, how its updates are cut up, and what decides its program."""
