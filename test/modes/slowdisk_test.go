//go:build e2e && linux

package modes

import (
	"fmt"
	"net"
	"os"
	"runtime"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// A slow disk is made by seccomp(2). The tests' program installs a filter in a child that then becomes
// coxswain: the kernel stops each fdatasync and reports it here, where it is held for a while.

// slowProgram is the variable that has the tests' program become another one, with a filter.
const slowProgram = "COXSWAIN_TEST_SLOW_PROGRAM"

// runSlowly becomes another program. Its calls of fdatasync are reported to the parent, at the other end of
// descriptor 3.
func runSlowly(program string) error {
	runtime.LockOSThread()
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("prctl: %w", err)
	}
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS}, // the number of the system call
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_FDATASYNC, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_USER_NOTIF},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	installed := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	listener, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER,
		unix.SECCOMP_FILTER_FLAG_NEW_LISTENER, uintptr(unsafe.Pointer(&installed)))
	if errno != 0 {
		return fmt.Errorf("seccomp: %w", errno)
	}
	if err := unix.Sendmsg(3, []byte{0}, unix.UnixRights(int(listener)), nil, 0); err != nil {
		return fmt.Errorf("send the listener: %w", err)
	}
	return syscall.Exec(program, append([]string{program}, os.Args[1:]...), os.Environ())
}

// slowness is how much longer the disk of some processes takes for each fdatasync.
type slowness struct{ longer atomic.Int64 }

func (s *slowness) set(longer time.Duration) { s.longer.Store(int64(longer)) }

// start starts coxswain on such a disk. The test is skipped where the kernel has no such filter.
func (s *slowness) start(t *testing.T, args ...string) *process {
	t.Helper()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	ours, theirs := os.NewFile(uintptr(pair[0]), "ours"), os.NewFile(uintptr(pair[1]), "theirs")
	defer ours.Close()
	p := launch{program: os.Args[0], env: []string{slowProgram + "=" + coxswain}, files: []*os.File{theirs}}.start(t,
		args...)
	require.NoError(t, theirs.Close())
	listener, err := receiveFile(ours)
	if err != nil {
		<-p.exited
		t.Skipf("SKIPPED: no slow disk can be made here: %v: %s", err, p.out.String())
	}
	go s.delay(int(listener.Fd()))
	t.Cleanup(func() {
		p.kill()
		_ = listener.Close()
	})
	return p
}

// receiveFile receives a file from the other end of a socket.
func receiveFile(from *os.File) (*os.File, error) {
	conn, err := net.FileConn(from)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	one, rights := make([]byte, 1), make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := conn.(*net.UnixConn).ReadMsgUnix(one, rights)
	if err != nil {
		return nil, err
	}
	messages, err := unix.ParseSocketControlMessage(rights[:n])
	if err != nil || len(messages) == 0 {
		return nil, fmt.Errorf("no file was sent: %w", err)
	}
	files, err := unix.ParseUnixRights(&messages[0])
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(files[0]), "listener"), nil
}

// notification and response are seccomp_notif and seccomp_notif_resp of the kernel.
type notification struct {
	id         uint64
	pid, flags uint32
	call       [64]byte
}

type response struct {
	id    uint64
	value int64
	err   int32
	flags uint32
}

// delay lets each call that is reported go on a while later, until the process has ended.
func (s *slowness) delay(listener int) {
	for {
		ready := []unix.PollFd{{Fd: int32(listener), Events: unix.POLLIN}}
		if _, err := unix.Poll(ready, -1); err == unix.EINTR {
			continue
		} else if err != nil || ready[0].Revents&unix.POLLIN == 0 {
			return
		}
		var call notification
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(listener), unix.SECCOMP_IOCTL_NOTIF_RECV,
			uintptr(unsafe.Pointer(&call))); errno != 0 {
			continue // the thread is gone
		}
		time.AfterFunc(time.Duration(s.longer.Load()), func() {
			proceed := response{id: call.id, flags: unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE}
			_, _, _ = unix.Syscall(unix.SYS_IOCTL, uintptr(listener), unix.SECCOMP_IOCTL_NOTIF_SEND,
				uintptr(unsafe.Pointer(&proceed)))
		})
	}
}
