"""The papers' tables, figures and theorems: data in recipes/PAPER/, and the few ways to run them."""
