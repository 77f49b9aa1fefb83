"""All layers of a decode step as one CUDA kernel, and how it is compiled, fed and started."""
