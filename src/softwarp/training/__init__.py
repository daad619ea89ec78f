"""From a recipe to a run: the loop, how it starts and stops; what is planned and chosen for own images."""
