"""Scores of what a model answered: what all kinds of downstream work share."""
