"""What reads a schedule: one interpreter, and the algebras that it runs on."""
