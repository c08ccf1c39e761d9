"""Where it is read what was asked: registrations, what a replica's bucket allows, both sides opened as they say."""
