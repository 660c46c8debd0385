"""Many runs: compared, tuned, reproduced, reported."""
