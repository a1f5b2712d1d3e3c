package nft

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
	"k8s.io/utils/clock"
)

// Conn is a connection to the tables of one namespace. It is not safe for concurrent use: transactions run one after
// the other.
type Conn struct {
	namespace *os.File // nil: the process's namespace
	socket    *netlink.Conn
	tables    *nftables.Conn // nil after a failure: the socket may hold unread answers
}

// Transaction collects changes of a namespace's tables, which the kernel applies all at once or not at all. The methods
// of nftables.Conn add changes, except that methods that read (GetRules, GetSetElements, …) read the kernel at once. Do
// not use a Transaction after Commit.
type Transaction struct {
	*nftables.Conn
	of  *Conn
	err error
}

const (
	// A transaction is one message to the kernel. The socket's buffer must hold it: 64 MiB are a million elements.
	maxTransaction = 64 << 20
	// The kernel acknowledges every change.
	maxAnswers = 16 << 20
	// The kernel answers while it is being written to. A kernel that does not answer for so long has no nftables.
	patience = 30 * time.Second
	// The elements of one message are a netlink attribute, at most 65,535 bytes. An element has a header for itself and
	// for each of its parts, and up to four fields of an address's size.
	chunk = 300
)

// Open connects to the tables of a network namespace; nil stands for the process's namespace. The file must stay open
// as long as the connection. Callers keep a connection because the kernel takes milliseconds to close one: it waits
// until all deleted objects are out of use.
func Open(namespace *os.File) (*Conn, error) {
	c := &Conn{namespace: namespace}
	return c, c.connect()
}

func (c *Conn) connect() error {
	options := []nftables.ConnOption{nftables.AsLasting(), nftables.WithSockOptions(c.prepare)}
	if c.namespace != nil {
		options = append(options, nftables.WithNetNSFd(descriptor(c.namespace)))
	}
	var err error
	if c.tables, err = nftables.New(options...); err != nil {
		c.tables = nil
		return fmt.Errorf("nftables: %w", err)
	}
	return nil
}

func (c *Conn) prepare(socket *netlink.Conn) error {
	c.socket = socket
	if err := socket.SetWriteBuffer(maxTransaction); err != nil {
		return fmt.Errorf("send buffer: %w", err)
	}
	if err := socket.SetReadBuffer(maxAnswers); err != nil {
		return fmt.Errorf("receive buffer: %w", err)
	}
	return nil
}

// Close closes the connection. The tables stay.
func (c *Conn) Close() {
	if c.tables != nil {
		_ = c.tables.CloseLasting()
		c.tables = nil
	}
}

// Begin begins a transaction. It has no effect before Commit.
func (c *Conn) Begin() (*Transaction, error) {
	if c.tables == nil {
		if err := c.connect(); err != nil {
			return nil, err
		}
	}
	if err := c.socket.SetReadDeadline(clock.RealClock{}.Now().Add(patience)); err != nil {
		return nil, fmt.Errorf("nftables: %w", err)
	}
	return &Transaction{Conn: c.tables, of: c}, nil
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

// setIDs guards the library's global counter of set IDs. Rules refer to sets of their own transaction by these IDs.
var setIDs sync.Mutex

// AddSet adds a set or map, with its elements if they are few. It assigns an ID to a set that has none.
func (t *Transaction) AddSet(set *nftables.Set, few []nftables.SetElement) {
	setIDs.Lock()
	defer setIDs.Unlock()
	if err := t.Conn.AddSet(set, few); err != nil {
		t.fail(fmt.Errorf("set %s: %w", set.Name, err))
	}
}

// fail makes Commit return the first error.
func (t *Transaction) fail(err error) {
	if t.err == nil {
		t.err = err
	}
}

// AddElements adds any number of elements to a set or map. Existing elements stay unchanged. An element of a map that
// exists with another value fails the transaction.
func (t *Transaction) AddElements(set *nftables.Set, elements []nftables.SetElement) {
	t.inChunks(set, elements, t.SetAddElements)
}

// DeleteElements deletes elements of a set or map. A missing element fails the transaction.
func (t *Transaction) DeleteElements(set *nftables.Set, elements []nftables.SetElement) {
	t.inChunks(set, elements, t.SetDeleteElements)
}

func (t *Transaction) inChunks(set *nftables.Set, elements []nftables.SetElement,
	send func(*nftables.Set, []nftables.SetElement) error) {
	for len(elements) > 0 && t.err == nil {
		n := min(chunk, len(elements))
		if err := send(set, elements[:n]); err != nil {
			t.fail(fmt.Errorf("elements of %s: %w", set.Name, err))
		}
		elements = elements[n:]
	}
}

// Commit applies the changes. After an error none was applied.
func (t *Transaction) Commit() error {
	err := t.err
	if err == nil {
		err = t.Flush()
	}
	if err != nil {
		t.of.Close()
		return fmt.Errorf("nftables: %w", err)
	}
	return nil
}

// Supported returns nil if a namespace has nftables, else an error.
func Supported(namespace *os.File) error {
	return Once(namespace, func(t *Transaction) error {
		_, err := t.ListTables()
		return err
	})
}

// DeleteTable deletes a table with its content, if the table exists.
func DeleteTable(namespace *os.File, table *nftables.Table) error {
	err := Once(namespace, func(t *Transaction) error {
		t.DelTable(table)
		return t.Commit()
	})
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}

// Once calls do with a transaction on a new connection. It does not commit.
func Once(namespace *os.File, do func(*Transaction) error) error {
	c, err := Open(namespace)
	if err != nil {
		return err
	}
	defer c.Close()
	t, err := c.Begin()
	if err != nil {
		return err
	}
	return do(t)
}
