//go:build linux

package sandbox

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// A pause stands for the program of a container that has no command: it does nothing until it is signalled. It is our
// binary again, run anew with the container's user and rights: the process that made the container keeps the machine's
// in its other threads.

// becomePause does not return but with an error. The pause closes the connection when it is ready for signals.
func becomePause(conn *net.UnixConn, program *os.File) error {
	f, err := conn.File()
	if err != nil {
		return err
	}
	for _, inherited := range []*os.File{f, program} {
		if _, err := unix.FcntlInt(uintptr(descriptor(inherited)), unix.F_SETFD, 0); err != nil {
			return err
		}
	}
	args := []string{pauseName, strconv.Itoa(descriptor(f)), strconv.Itoa(descriptor(program))}
	err = syscall.Exec(fmt.Sprintf("/proc/self/fd/%d", descriptor(program)), args, []string{"GOMAXPROCS=1"})
	return fmt.Errorf("run the agent's program as the container's user: %w", err)
}

// pauseMain is the process of a container without a command.
func pauseMain() int {
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGTERM, syscall.SIGINT)
	for _, arg := range os.Args[1:] {
		fd, err := strconv.Atoi(arg)
		if err = errors.Join(err, unix.Close(fd)); err != nil {
			return 1
		}
	}
	<-ended
	return 0
}
