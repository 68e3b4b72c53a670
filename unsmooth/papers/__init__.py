"""Tables, figures and theorems of the papers: data in experiments/PAPER/, and code that runs them."""
