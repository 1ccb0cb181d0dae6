"""The processes of a service: the server, the recorder and the trainer."""
