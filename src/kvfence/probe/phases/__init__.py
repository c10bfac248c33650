"""One file a phase; each is ``async def run(stage) -> None`` and sends until its share is spent."""
