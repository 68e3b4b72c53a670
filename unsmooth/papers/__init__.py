"""The papers' tables, figures and theorems: data in experiments/PAPER/, and the few ways to run them."""
