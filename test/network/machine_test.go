//go:build e2e && linux

package network

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"sync"

	"github.com/vishvananda/netlink"

	"github.com/coxswain-dev/coxswain/network/netns"
)

// machine is a network namespace that stands for a machine: it has its own addresses, routes and packet filter.
type machine struct {
	namespace *os.File
	address   string
}

// segment creates machines on a network segment of their own: 192.0.2.1, 192.0.2.2, … closeAll removes them.
func segment(count int) (machines []*machine, closeAll func(), err error) {
	var all []*machine
	closeAll = func() {
		for _, m := range all {
			_ = m.namespace.Close()
		}
	}
	for i := range count + 1 {
		f, err := netns.New()
		if err != nil {
			return nil, closeAll, err
		}
		all = append(all, &machine{f, netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}).String()})
	}
	between := all[0] // its bridge is the segment
	if err := between.do(func() error { return addBridge("segment") }); err != nil {
		return nil, closeAll, err
	}
	for i, m := range all[1:] {
		if err := between.do(func() error { return plug(m.namespace, fmt.Sprint("port", i+1)) }); err != nil {
			return nil, closeAll, err
		}
		if err := m.do(func() error { return errors.Join(setUp("lo"), giveAddress("uplink", m.address+"/24")) }); err != nil {
			return nil, closeAll, err
		}
	}
	return all[1:], closeAll, nil
}

func addBridge(name string) error {
	if err := netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: name}}); err != nil {
		return err
	}
	return setUp(name)
}

// plug connects the bridge of this namespace with a machine.
func plug(machine *os.File, port string) error {
	bridge, err := netlink.LinkByName("segment")
	if err != nil {
		return err
	}
	cable := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: port, MasterIndex: bridge.Attrs().Index},
		PeerName: "uplink", PeerNamespace: netlink.NsFd(machine.Fd())}
	if err := netlink.LinkAdd(cable); err != nil {
		return err
	}
	return netlink.LinkSetUp(cable)
}

func setUp(device string) error {
	link, err := netlink.LinkByName(device)
	if err != nil {
		return err
	}
	return netlink.LinkSetUp(link)
}

func giveAddress(device, text string) error {
	link, err := netlink.LinkByName(device)
	if err != nil {
		return err
	}
	a, err := netlink.ParseAddr(text)
	if err != nil {
		return err
	}
	if err := netlink.AddrAdd(link, a); err != nil {
		return err
	}
	return setUp(device)
}

func (m *machine) do(do func() error) error { return netns.Do(m.namespace, do) }

// unplug disconnects the machine from the others.
func (m *machine) unplug() error {
	return m.do(func() error {
		link, err := netlink.LinkByName("uplink")
		if err != nil {
			return err
		}
		return netlink.LinkSetDown(link)
	})
}

// dial connects from the machine.
func (m *machine) dial(ctx context.Context, protocol, address string) (conn net.Conn, err error) {
	err = m.do(func() (err error) {
		conn, err = (&net.Dialer{}).DialContext(ctx, protocol, address)
		return err
	})
	return conn, err
}

// try runs a program on the machine and returns its stdout. An error contains its stderr.
func (m *machine) try(program string, args ...string) (string, error) {
	var out bytes.Buffer
	err := m.run(nil, &out, program, args...)
	return out.String(), err
}

func (m *machine) run(stdin io.Reader, stdout io.Writer, program string, args ...string) error {
	var problems bytes.Buffer
	cmd := exec.Command(program, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, stdout, &problems
	if err := m.do(cmd.Start); err != nil {
		return err
	}
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("%w: %s", err, problems.String())
	}
	return nil
}

// process is a program that runs on a machine until it is killed.
type process struct {
	name    string
	command *exec.Cmd
	out     output
	exited  chan struct{}
}

func (m *machine) start(program string, args ...string) (*process, error) {
	p := &process{name: fmt.Sprint(program, args), command: exec.Command(program, args...), exited: make(chan struct{})}
	p.command.Stdout, p.command.Stderr = &p.out, &p.out
	if err := m.do(p.command.Start); err != nil {
		return nil, err
	}
	go func() {
		_ = p.command.Wait()
		close(p.exited)
	}()
	return p, nil
}

// kill kills the process with kill -9, and waits for it.
func (p *process) kill() {
	_ = p.command.Process.Kill() // it may have ended already
	<-p.exited
}

// output collects the output of a process.
type output struct {
	mu  sync.Mutex
	all bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.all.Write(p)
}

// String returns the whole output.
func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.all.String()
}

// tail returns the end of the output.
func (o *output) tail() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	const limit = 8 << 10
	return string(o.all.Bytes()[max(0, o.all.Len()-limit):])
}
