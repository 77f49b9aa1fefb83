"""Past one machine: each model drawn by the replicas of a Ray Serve deployment."""
