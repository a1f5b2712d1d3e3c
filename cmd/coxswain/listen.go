package main

import (
	"errors"
	"fmt"
	"net"
	"syscall"
)

// listen listens on an address that a flag has set. Its error names the obstacle, and the flag that
// avoids it.
func listen(flag, address string) (net.Listener, error) {
	ln, err := net.Listen("tcp", address)
	if err != nil {
		return nil, listenError(flag, address, err)
	}
	return ln, nil
}

// listenError explains why the address that a flag has set cannot be listened on.
func listenError(flag, address string, err error) error {
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return fmt.Errorf(
			"--%s: %s is in use by another process%s: end that one, or choose another port with --%s",
			flag, address, portHolder(address), flag)
	case errors.Is(err, syscall.EACCES):
		return fmt.Errorf("--%s: this user may not listen on %s: choose a port from 1024 on with --%s", flag,
			address, flag)
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return fmt.Errorf("--%s: this machine does not have the address of %s: %w", flag, address, err)
	}
	return fmt.Errorf("--%s: %w", flag, err)
}
