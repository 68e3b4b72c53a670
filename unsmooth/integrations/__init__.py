"""Callbacks for the trainers of other libraries. Each module needs its library; nothing here is imported by default."""
