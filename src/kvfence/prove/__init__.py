"""Evidence over the one ``step``: search, proof, judges, and traces checked line by line. No torch."""
