"""Measures a server from outside: any that speaks OpenAI's API, under a load that the simulator can replay."""
