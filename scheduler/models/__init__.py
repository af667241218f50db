"""Models behind one Protocol. A model is asked for one decision at a time and remembers nothing itself."""
