"""A judge of drawn pictures that is not the model that drew them."""
