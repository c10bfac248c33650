"""A worker program that never says a word, and ends with its lifeline."""

import socket
import sys

if __name__ == "__main__":
    lifeline = socket.socket(fileno=int(sys.argv[1]))
    while lifeline.recv(1 << 16):
        pass
