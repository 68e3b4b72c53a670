"""Vitals during training: measurements at some steps, alarms, and records in the usual experiment trackers."""
