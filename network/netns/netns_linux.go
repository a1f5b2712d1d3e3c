package netns

import (
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// New creates a namespace. It exists as long as the file is open somewhere or a process is in it.
func New() (*os.File, error) {
	var f *os.File
	err := onOwnThread(func() (err error) {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("create network namespace: %w", err)
		}
		f, err = Current()
		return err
	})
	return f, err
}

// Current returns the namespace of the calling thread.
func Current() (*os.File, error) { return os.Open("/proc/thread-self/ns/net") }

// Do calls do in a namespace, on a thread of its own; nil stands for the caller's namespace. Sockets that do opens stay
// in the namespace. Goroutines that do starts run elsewhere.
func Do(namespace *os.File, do func() error) error {
	if namespace == nil {
		return do()
	}
	return onOwnThread(func() error {
		if err := unix.Setns(descriptor(namespace), unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("enter network namespace: %w", err)
		}
		return do()
	})
}

// Same reports whether two files refer to the same namespace.
func Same(a, b *os.File) bool {
	first, err := a.Stat()
	if err != nil {
		return false
	}
	second, err := b.Stat()
	return err == nil && os.SameFile(first, second)
}

// onOwnThread calls do on a thread that ends afterwards, so that no other goroutine runs in the namespace that do
// entered.
func onOwnThread(do func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		done <- do()
	}()
	return <-done
}

// descriptor returns a file's number. Unlike File.Fd it does not set the file to blocking mode: it may be in use
// elsewhere.
func descriptor(f *os.File) int {
	fd := -1
	if conn, err := f.SyscallConn(); err == nil {
		_ = conn.Control(func(n uintptr) { fd = int(n) })
	}
	return fd
}
