package main

import (
	"errors"
	"fmt"
	"net"
	"syscall"
)

// listen listens on an address that a flag has set. Its error says what is in the way, and which flag leads round it.
func listen(flag, address string) (net.Listener, error) {
	ln, err := net.Listen("tcp", address)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("--%s: %s is in use by another process%s: end that one, or choose another port with --%s",
			flag, address, portHolder(address), flag)
	case errors.Is(err, syscall.EACCES):
		return nil, fmt.Errorf("--%s: this user may not listen on %s: choose a port from 1024 on with --%s", flag, address, flag)
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return nil, fmt.Errorf("--%s: this machine does not have the address of %s: %w", flag, address, err)
	case err != nil:
		return nil, fmt.Errorf("--%s: %w", flag, err)
	}
	return ln, nil
}
