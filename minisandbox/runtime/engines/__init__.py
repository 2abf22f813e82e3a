"""Engines: how an init gets into a new container. Each returns a control socket on which the init serves."""
