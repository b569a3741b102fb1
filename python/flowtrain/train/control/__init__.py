"""How the ranks of a job meet, agree on each step, and notice a rank that is dead or silent."""
