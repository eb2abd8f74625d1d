"""The cluster's books: who has what of which GPU. Pure: events in, answers out."""
