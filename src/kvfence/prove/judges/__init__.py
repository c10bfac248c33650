"""Second opinions: the same small world for tools that share no code with ours, TLC and SPIN."""
