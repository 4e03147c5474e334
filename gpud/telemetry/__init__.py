"""What happened: events for people and programs, kept in bounded rings."""
