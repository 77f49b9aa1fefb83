"""Data sets: MNIST, CIFAR-10 and folders of images."""
