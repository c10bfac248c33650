"""x"""
def is_url(s): return False
