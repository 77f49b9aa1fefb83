"""The engine: generations, their queue, the scheduler and the decoding loop."""
