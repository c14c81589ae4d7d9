"""Karel program synthesis: find the program that turns each input world into its output world."""
