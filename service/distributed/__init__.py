"""Drawing on several machines: replicas behind Ray Serve."""
