"""The mathematics of the planners: recurrences, closed forms and the bounds they prove. There are no ops here."""
