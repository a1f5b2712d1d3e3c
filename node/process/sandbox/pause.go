//go:build linux

package sandbox

import (
	"fmt"
	"net"
	"os"
	"os/signal"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// A pause replaces the program of a container that has no command: it waits for a signal. It runs the agent's binary
// again with the container's user and rights. The process that set up the container cannot be the pause itself, because
// its other threads keep the machine's rights.

// becomePause executes the pause, and returns only if that fails. The pause closes the connection when it is ready for
// signals.
func becomePause(conn *net.UnixConn, program *os.File, stopSignal int) error {
	f, err := conn.File()
	if err != nil {
		return err
	}
	for _, inherited := range []*os.File{f, program} {
		if _, err := unix.FcntlInt(uintptr(descriptor(inherited)), unix.F_SETFD, 0); err != nil {
			return err
		}
	}
	args := []string{pauseName}
	for _, number := range []int{stopSignal, descriptor(f), descriptor(program)} {
		args = append(args, strconv.Itoa(number))
	}
	err = syscall.Exec(fmt.Sprintf("/proc/self/fd/%d", descriptor(program)), args, []string{"GOMAXPROCS=1"})
	return fmt.Errorf("run the agent's program as the container's user: %w", err)
}

// pauseMain runs in the process of a container without a command.
func pauseMain() int {
	var numbers [3]int // the stop signal, and two descriptors to close
	for i := range numbers {
		if i+1 >= len(os.Args) {
			return 1
		}
		var err error
		if numbers[i], err = strconv.Atoi(os.Args[i+1]); err != nil {
			return 1
		}
	}
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGTERM, syscall.SIGINT)
	if numbers[0] > 0 {
		signal.Notify(ended, syscall.Signal(numbers[0]))
	}
	if unix.Close(numbers[1]) != nil || unix.Close(numbers[2]) != nil {
		return 1
	}
	<-ended
	return 0
}
