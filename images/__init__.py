"""What sandboxes run: build recipes, and the lock that names each image by its digest."""
