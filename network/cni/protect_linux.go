package cni

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"k8s.io/utils/clock"
)

// The plugin asks the daemon to protect a pod over a socket in the folder, which only the superuser can reach. Each
// connection carries one question and one reply, each a JSON document.

// Pod is the pod of a container, as Kubernetes runtimes name it in CNI_ARGS.
type Pod struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	UID       string `json:"uid,omitempty"` // "" if the runtime does not pass it
}

// question requests that a pod's policies be enforced at its addresses.
type question struct {
	Pod       Pod          `json:"pod"`
	Addresses []netip.Addr `json:"addresses"`
}

// reply has an error if they are not.
type reply struct {
	Error string `json:"error,omitempty"`
}

const (
	// protectPatience is how long the plugin waits for the daemon. The daemon waits for its policies for less.
	protectPatience = 20 * time.Second
	// maxMessage limits a message, in bytes.
	maxMessage = 16 << 10
)

// podOf reads the pod from CNI_ARGS, "KEY=VALUE;KEY=VALUE". It returns false for containers outside pods.
func podOf(arguments string) (pod Pod, ok bool) {
	for pair := range strings.SplitSeq(arguments, ";") {
		key, value, _ := strings.Cut(pair, "=")
		switch key {
		case "K8S_POD_NAMESPACE":
			pod.Namespace = value
		case "K8S_POD_NAME":
			pod.Name = value
		case "K8S_POD_UID":
			pod.UID = value
		}
	}
	return pod, pod.Namespace != "" && pod.Name != ""
}

// protect waits until the daemon enforces a pod's policies at its addresses.
func (c *call) protect(pod Pod, addresses []netip.Addr) error {
	fail := func(err error) error {
		return types.NewError(types.ErrTryAgainLater,
			fmt.Sprintf("network policies of pod %s/%s are not in force", pod.Namespace, pod.Name), err.Error())
	}
	conn, err := c.dial()
	if err != nil {
		return fail(fmt.Errorf("coxswain cni serve does not answer: %w", err))
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(clock.RealClock{}.Now().Add(protectPatience))
	var answer reply
	err = json.NewEncoder(conn).Encode(question{pod, addresses})
	if err == nil {
		err = json.NewDecoder(io.LimitReader(conn, maxMessage)).Decode(&answer)
	}
	switch {
	case err != nil:
		return fail(fmt.Errorf("coxswain cni serve does not answer: %w", err))
	case answer.Error != "":
		return fail(errors.New(answer.Error))
	}
	return nil
}

// inFolder calls do with the path of the socket relative to an open folder in /proc, since the kernel limits socket
// paths to 107 bytes.
func (f folder) inFolder(do func(socket string) error) error {
	open, err := os.Open(string(f))
	if err != nil {
		return err
	}
	defer func() { _ = open.Close() }()
	return do(fmt.Sprintf("/proc/self/fd/%d/%s", open.Fd(), socketName))
}

const socketName = "daemon.sock"

func (f folder) dial() (conn net.Conn, err error) {
	err = f.inFolder(func(socket string) (err error) {
		conn, err = net.DialTimeout("unix", socket, protectPatience)
		return err
	})
	return conn, err
}

// Answer answers the plugin's questions with protect until the caller calls the returned function, which waits for
// calls in progress. Their context is canceled when ctx ends or the plugin disconnects.
func (h *Host) Answer(ctx context.Context, protect func(context.Context, Pod, []netip.Addr) error) (func(), error) {
	if err := os.Remove(h.path(socketName)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var listener *net.UnixListener
	err := h.inFolder(func(socket string) (err error) {
		listener, err = net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: socket})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("listen to the plugin: %w", err)
	}
	listener.SetUnlinkOnClose(false) // its /proc path is stale by then; the next daemon removes the file
	if err := os.Chmod(h.path(socketName), 0o600); err != nil {
		_ = listener.Close()
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return // the listener is closed
			}
			running.Go(func() { answer(ctx, conn, protect) })
		}
	})
	return func() {
		_ = listener.Close()
		cancel()
		running.Wait()
	}, nil
}

// answer answers one question and closes the connection.
func answer(ctx context.Context, conn net.Conn, protect func(context.Context, Pod, []netip.Addr) error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	_ = conn.SetDeadline(clock.RealClock{}.Now().Add(protectPatience))
	q, decoder := question{}, json.NewDecoder(io.LimitReader(conn, maxMessage))
	if decoder.Decode(&q) != nil {
		_ = conn.Close()
		return
	}
	var watching sync.WaitGroup
	defer watching.Wait()
	defer func() { _ = conn.Close() }()
	watching.Go(func() { // the plugin sends no more data: the read ends when it disconnects
		_, _ = io.Copy(io.Discard, conn)
		cancel()
	})
	r := reply{}
	if err := protect(ctx, q.Pod, q.Addresses); err != nil {
		r.Error = err.Error()
	}
	_ = json.NewEncoder(conn).Encode(r) // the plugin may have disconnected
}
