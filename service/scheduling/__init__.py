"""Who is drawn when: callers in turn, their images in turn, and how long the others will wait."""
