"""The mathematics that the planners stand on: recurrences, closed forms and the bounds they prove. No ops here."""
