"""The inductive invariant: what holds of every state, for any number of attempts, pages and sizes, checked by Z3."""
