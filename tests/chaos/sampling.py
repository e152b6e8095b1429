"""What the jobs of fault tests ask for."""

SAMPLED = {"max_tokens": 200, "temperature": 0.8, "seed": 11}
SHORT = {**SAMPLED, "max_tokens": 20}
LONG = {**SAMPLED, "max_tokens": 300}
