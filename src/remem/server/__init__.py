"""The memory over HTTP: `remem serve`. Everything it promises is the engine's; this is the door in front of it."""
