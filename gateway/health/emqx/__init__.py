"""What EMQX knows of this gateway's sessions, and what it lost before the gateway got it."""
