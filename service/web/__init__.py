"""The web page and the preview images of shared links."""
