//go:build linux

package sandbox

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// request is a request of the agent to a shim; each connection has one.
type request struct {
	Op        string     `json:"op"`
	Container *Container `json:"container,omitempty"` // start
	Name      string     `json:"name,omitempty"`
	Run       int32      `json:"run,omitempty"`
	Signal    int        `json:"signal,omitempty"`
	Args      []string   `json:"args,omitempty"` // exec
	TTY       bool       `json:"tty,omitempty"`
	Stdin     bool       `json:"stdin,omitempty"`
	Port      uint16     `json:"port,omitempty"`
	Address   string     `json:"address,omitempty"`
	Sysctls   []Sysctl   `json:"sysctls,omitempty"`
}

// response is an answer of the shim. Some requests have two: when a command was started, and when it has ended.
type response struct {
	Error string `json:"error,omitempty"`
	// Start marks an error as a StartError: the container's own fault.
	Start bool  `json:"start,omitempty"`
	Exit  *Exit `json:"exit,omitempty"`
	// Files are the names of the descriptors that come with the response.
	Files []string `json:"files,omitempty"`
}

const (
	opStart      = "start"
	opWait       = "wait"
	opSignal     = "signal"
	opExec       = "exec"
	opAttach     = "attach"
	opCloseStdin = "closeStdin"
	opDial       = "dial"
	opQuit       = "quit"
	opNetwork    = "network"
	opSysctls    = "sysctls"
)

// maxMessage is far beyond the largest environment that the kernel accepts.
const maxMessage = 8 << 20

// send writes a message, and passes files with it.
func send(c *net.UnixConn, message any, files ...*os.File) error {
	body, err := json.Marshal(message)
	if err != nil {
		return err
	}
	frame := append(binary.BigEndian.AppendUint32(nil, uint32(len(body))), body...)
	var rights []byte
	if len(files) > 0 {
		fds := make([]int, len(files))
		for i, f := range files {
			fds[i] = descriptor(f)
		}
		rights = unix.UnixRights(fds...)
	}
	n, _, err := c.WriteMsgUnix(frame[:4], rights, nil) // the descriptors are sent with the first bytes
	if err != nil {
		return err
	}
	_, err = c.Write(frame[n:])
	return err
}

// receive reads a message and the files that were passed with it.
func receive(c *net.UnixConn, into any) ([]*os.File, error) {
	head, rights := make([]byte, 4), make([]byte, unix.CmsgSpace(4*8))
	n, nrights, _, _, err := c.ReadMsgUnix(head, rights)
	if err != nil {
		return nil, err
	}
	if n == 0 {
		return nil, io.EOF
	}
	files, err := openRights(rights[:nrights])
	if err == nil {
		_, err = io.ReadFull(c, head[n:])
	}
	length := binary.BigEndian.Uint32(head)
	if err == nil && length > maxMessage {
		err = errors.New("message too long")
	}
	if err == nil {
		body := make([]byte, length)
		if _, err = io.ReadFull(c, body); err == nil {
			err = json.Unmarshal(body, into)
		}
	}
	if err != nil {
		closeAll(files)
		return nil, err
	}
	return files, nil
}

// descriptor returns a file's number. Unlike File.Fd it does not switch the file, which others may share, to blocking.
func descriptor(f *os.File) int {
	number := -1
	if raw, err := f.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { number = int(fd) })
	}
	return number
}

func openRights(rights []byte) ([]*os.File, error) {
	if len(rights) == 0 {
		return nil, nil
	}
	messages, err := unix.ParseSocketControlMessage(rights)
	if err != nil {
		return nil, err
	}
	var files []*os.File
	for i := range messages {
		fds, err := unix.ParseUnixRights(&messages[i])
		if err != nil {
			closeAll(files)
			return nil, err
		}
		for _, fd := range fds {
			unix.CloseOnExec(fd)
			_ = unix.SetNonblock(fd, true) // so that Close interrupts reads
			files = append(files, os.NewFile(uintptr(fd), "passed"))
		}
	}
	return files, nil
}

func closeAll(files []*os.File) {
	for _, f := range files {
		if f != nil {
			_ = f.Close()
		}
	}
}

// socketName is the name of the shim's socket in a pod's folder. The socket is reached through a descriptor of the
// folder, because the path of a socket is limited to 107 bytes.
const socketName = "shim"

func withSocket[T any](dir string, do func(path string) (T, error)) (T, error) {
	folder, err := os.Open(dir)
	if err != nil {
		var none T
		return none, err
	}
	defer func() { _ = folder.Close() }()
	return do(fmt.Sprintf("/proc/self/fd/%d/%s", folder.Fd(), socketName))
}

func dialShim(dir string) (*net.UnixConn, error) {
	return withSocket(dir, func(path string) (*net.UnixConn, error) {
		conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrGone, err)
		}
		return conn, nil
	})
}

// ask sends a request and reads the first response, until ctx ends. The connection stays open for a second response,
// and the caller must close it and the files.
func ask(ctx context.Context, dir string, r *request, with ...*os.File) (*net.UnixConn, *response, []*os.File, error) {
	conn, err := dialShim(dir)
	if err != nil {
		return nil, nil, nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(0, 1)) }) // a deadline in the past
	defer stop()
	answer := &response{}
	var files []*os.File
	if err = send(conn, r, with...); err == nil {
		files, err = receive(conn, answer)
	}
	if err != nil && ctx.Err() != nil {
		err = fmt.Errorf("the pod's shim has not answered: %w", ctx.Err())
	} else if err != nil {
		err = fmt.Errorf("%w: %w", ErrGone, err)
	} else if answer.Error != "" {
		err = errors.New(answer.Error)
		if answer.Start {
			err = &StartError{answer.Error}
		}
	}
	if err != nil {
		closeAll(files)
		_ = conn.Close()
		return nil, nil, nil, err
	}
	return conn, answer, files, nil
}

// call sends a request that has one response.
func call(ctx context.Context, dir string, r *request) error {
	conn, _, files, err := ask(ctx, dir, r)
	if err != nil {
		return err
	}
	closeAll(files)
	return conn.Close()
}
