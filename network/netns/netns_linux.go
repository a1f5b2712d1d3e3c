package netns

import (
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// New makes a namespace. It exists as long as the file is open somewhere or a process is in it.
func New() (*os.File, error) {
	var f *os.File
	err := onOwnThread(func() (err error) {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("make network namespace: %w", err)
		}
		f, err = Current()
		return err
	})
	return f, err
}

// Current is the namespace of the calling thread.
func Current() (*os.File, error) { return os.Open("/proc/thread-self/ns/net") }

// Do calls do in a namespace, on a thread of its own; nil is the caller's. Sockets opened there stay in the namespace;
// goroutines that do starts do not.
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

// Same reports whether two files are the same namespace.
func Same(a, b *os.File) bool {
	first, err := a.Stat()
	if err != nil {
		return false
	}
	second, err := b.Stat()
	return err == nil && os.SameFile(first, second)
}

// onOwnThread calls do on a thread that ends with it, so that nothing else ever runs where do has left the thread.
func onOwnThread(do func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		done <- do()
	}()
	return <-done
}

// descriptor is a file's number. Unlike File.Fd it leaves the file as it is, which may be in use elsewhere.
func descriptor(f *os.File) int {
	fd := -1
	if conn, err := f.SyscallConn(); err == nil {
		_ = conn.Control(func(n uintptr) { fd = int(n) })
	}
	return fd
}
