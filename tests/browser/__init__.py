"""Reports in a real browser. A package, so that what its tests share ends with them: the driver of the browser keeps the event loop of the thread."""
