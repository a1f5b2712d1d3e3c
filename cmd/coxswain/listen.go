package main

import (
	"errors"
	"fmt"
	"net"
	"syscall"

	"github.com/coxswain-dev/coxswain/cmd/coxswain/ownprocess"
)

// listen listens on the address of a flag. Its error names the cause and the flag.
func listen(flag, address string) (net.Listener, error) {
	ln, err := net.Listen("tcp", address)
	if err != nil {
		return nil, listenError(flag, address, err)
	}
	return ln, nil
}

// listenError returns an error that explains why the process cannot listen on the address of a flag, and what the user
// can do.
func listenError(flag, address string, err error) error {
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return fmt.Errorf(
			"--%s: %s is in use by another process%s: stop that process, or choose another port with --%s",
			flag, address, ownprocess.PortHolder(address), flag)
	case errors.Is(err, syscall.EACCES):
		return fmt.Errorf("--%s: this user may not listen on %s: choose a port from 1024 on with --%s", flag,
			address, flag)
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return fmt.Errorf("--%s: this machine does not have the address of %s: %w", flag, address, err)
	}
	return fmt.Errorf("--%s: %w", flag, err)
}
