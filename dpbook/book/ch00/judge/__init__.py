"""The task on which chapter 00 shows how checking works."""
