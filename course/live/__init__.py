"""From running ranks to a picture: events -> a bounded aggregate -> one painter, at most ten frames a second."""
