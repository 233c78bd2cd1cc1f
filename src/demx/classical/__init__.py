"""Classical samplers over BlackJAX: chains, tempering, importance, annealing, nested sampling."""
