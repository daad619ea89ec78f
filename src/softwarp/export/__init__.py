"""Models in other forms, and the check that they answer alike."""
