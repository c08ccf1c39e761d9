"""Who is the source: a replica is made it, and the old source is made its replica."""
