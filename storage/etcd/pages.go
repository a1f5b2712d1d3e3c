package etcd

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"math"
	"os"
	"runtime/debug"
	"strconv"
	"syscall"
)

// databaseState is the part of etcd's database that identifies its origin.
type databaseState struct {
	index, term uint64   // of the last log entry in the database; 0 in a new or restored one
	members     []uint64 // of the cluster
}

// inspectDatabase walks through the pages of etcd's database, in bbolt's format, and checks the properties that bbolt
// and etcd assume. It does not check values, which have no checksums.
func inspectDatabase(file *os.File) (state *databaseState, err error) {
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	if info.Size() == 0 {
		return &databaseState{}, nil // bbolt creates a new database
	}
	data, err := syscall.Mmap(int(file.Fd()), 0, int(info.Size()), syscall.PROT_READ, syscall.MAP_SHARED)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, syscall.Munmap(data)) }()
	// Reading a page that the disk cannot deliver is a memory fault. It becomes a panic.
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if fault := recover(); fault != nil {
			err = fmt.Errorf("it cannot be read: %v", fault)
		}
	}()
	p, err := openPages(data)
	if err != nil {
		return nil, err
	}
	return p.inspect()
}

// The numbers of bbolt's file format.
const (
	pageHeader  = 16
	pageElement = 16
	metaSize    = 64
	magic       = 0xED0CDAED
	version     = 2
	noFreelist  = math.MaxUint64

	branchPage   = 0x01
	leafPage     = 0x02
	freelistPage = 0x10
	bucketFlag   = 0x01
)

var order = binary.NativeEndian // bbolt maps its structures into memory

// pages is a database file. A page is identified by its number.
type pages struct {
	data     []byte
	size     uint64 // of a page, in bytes
	count    uint64 // of all pages that were ever used
	root     uint64
	freelist uint64
	seen     []bool
}

// openPages reads the newer of the two meta pages.
func openPages(data []byte) (*pages, error) {
	var best *pages
	var newest uint64
	for _, offset := range metaPages(data) {
		meta := data[offset+pageHeader:]
		if len(meta) < metaSize || order.Uint32(meta) != magic || order.Uint32(meta[4:]) != version {
			continue
		}
		if size := int(order.Uint32(meta[8:])); offset != 0 && offset != size {
			continue
		}
		sum := fnv.New64a()
		_, _ = sum.Write(meta[:metaSize-8])
		if sum.Sum64() != order.Uint64(meta[metaSize-8:]) {
			continue
		}
		if written := order.Uint64(meta[48:]); best == nil || written > newest {
			newest = written
			best = &pages{data: data, size: uint64(order.Uint32(meta[8:])), root: order.Uint64(meta[16:]),
				freelist: order.Uint64(meta[32:]), count: order.Uint64(meta[40:])}
		}
	}
	if best == nil {
		return nil, errors.New("neither of its first two pages is intact")
	}
	if have := uint64(len(data)); best.size == 0 || best.count > have/best.size {
		return nil, fmt.Errorf("it has %d bytes, of %d pages of %d: it is cut off", have, best.count, best.size)
	}
	best.seen = make([]bool, best.count)
	return best, nil
}

// metaPages returns the offsets at which meta pages may begin: the start, and the second page for each possible page
// size.
func metaPages(data []byte) []int {
	offsets := []int{0}
	for size := 1 << 10; size <= 1<<16; size <<= 1 {
		offsets = append(offsets, size)
	}
	for i, offset := range offsets {
		if offset+pageHeader > len(data) {
			return offsets[:i]
		}
	}
	return offsets
}

func (p *pages) inspect() (*databaseState, error) {
	state := &databaseState{}
	err := p.bucket(p.root, func(name, value []byte, flags uint32) error {
		if flags != bucketFlag || len(value) < 16 {
			return errors.New("it holds something beside etcd's buckets")
		}
		check := func(k, v []byte, flags uint32) error {
			if flags != 0 {
				return fmt.Errorf("bucket %s: the key %x is none of etcd's", name, k)
			}
			return state.take(string(name), k, v)
		}
		if root := order.Uint64(value); root != 0 {
			return p.bucket(root, check)
		}
		return p.elements(value[16:], 0, leafPage, check) // a small one is within
	})
	if err != nil {
		return nil, err
	}
	return state, p.free()
}

// take records the values of a key that etcd reads when it starts.
func (s *databaseState) take(bucket string, key, value []byte) error {
	switch {
	case bucket == "key" && !isRevision(key):
		return fmt.Errorf("%x is not a revision", key)
	case bucket == "lease" && len(key) != 8:
		return fmt.Errorf("%x is not a lease", key)
	case bucket == "members":
		id, err := strconv.ParseUint(string(key), 16, 64)
		if err != nil {
			return fmt.Errorf("%q is not a member", key)
		}
		s.members = append(s.members, id)
	case bucket == "meta" && (string(key) == "consistent_index" || string(key) == "term"):
		if len(value) != 8 {
			return fmt.Errorf("%s is %x", key, value)
		}
		if n := binary.BigEndian.Uint64(value); string(key) == "term" {
			s.term = n
		} else {
			s.index = n
		}
	}
	return nil
}

// isRevision reports whether a key is one of etcd's revisions: main_sub, and t for a deletion.
func isRevision(key []byte) bool {
	return (len(key) == 17 || len(key) == 18 && key[17] == 't') && key[8] == '_' && key[0] < 0x80 && key[9] < 0x80
}

// deepest is larger than the number of levels of any tree of distinct pages.
const deepest = 64

// bucket visits all keys below a page.
func (p *pages) bucket(root uint64, visit func(key, value []byte, flags uint32) error) error {
	return p.walk(root, nil, nil, deepest, visit)
}

// walk visits the keys below a page. Each key must not be less than low, and must be less than high unless high is nil.
func (p *pages) walk(id uint64, low, high []byte, depth int,
	visit func(key, value []byte, flags uint32) error) error {
	if depth == 0 {
		return fmt.Errorf("page %d: the tree has no end", id)
	}
	page, kind, err := p.page(id)
	if err != nil {
		return err
	}
	if kind != branchPage && kind != leafPage {
		return fmt.Errorf("page %d: its type is %#x", id, kind)
	}
	type child struct {
		key []byte
		id  uint64
	}
	var children []child
	last, before := low, false
	err = p.elements(page, id, kind, func(key, value []byte, flags uint32) error {
		if c := bytes.Compare(last, key); c > 0 || c == 0 && before {
			return fmt.Errorf("page %d: its keys are not in order", id)
		}
		if high != nil && bytes.Compare(key, high) >= 0 {
			return fmt.Errorf("page %d: it has keys of another page", id)
		}
		last, before = key, true
		if kind == leafPage {
			return visit(key, value, flags)
		}
		children = append(children, child{key, order.Uint64(value)})
		return nil
	})
	for i := 0; i < len(children) && err == nil; i++ {
		next := high
		if i+1 < len(children) {
			next = children[i+1].key
		}
		err = p.walk(children[i].id, children[i].key, next, depth-1, visit)
	}
	return err
}

// page returns a page with its overflow pages. Each page must be used only once.
func (p *pages) page(id uint64) (content []byte, kind uint16, err error) {
	if id < 2 || id >= p.count {
		return nil, 0, fmt.Errorf("there is no page %d", id)
	}
	content = p.data[id*p.size:]
	more := uint64(order.Uint32(content[12:]))
	if order.Uint64(content) != id || more >= p.count-id {
		return nil, 0, fmt.Errorf("page %d: its header is wrong", id)
	}
	for i := id; i <= id+more; i++ {
		if p.seen[i] {
			return nil, 0, fmt.Errorf("page %d: it is in two places", i)
		}
		p.seen[i] = true
	}
	return content[:(more+1)*p.size], order.Uint16(content[8:]), nil
}

// elements visits the elements of a page. The value of an element of a branch page is the number of its child.
func (p *pages) elements(page []byte, id uint64, kind uint16, visit func(key, value []byte, flags uint32) error) error {
	if len(page) < pageHeader {
		return fmt.Errorf("page %d: it is too short", id)
	}
	count := int(order.Uint16(page[10:]))
	if pageHeader+count*pageElement > len(page) {
		return fmt.Errorf("page %d: it has %d elements", id, count)
	}
	for i := range count {
		element := page[pageHeader+i*pageElement:]
		var flags, start, keySize, valueSize uint64
		if kind == leafPage {
			flags, start, keySize, valueSize = uint64(order.Uint32(element)), uint64(order.Uint32(element[4:])),
				uint64(order.Uint32(element[8:])), uint64(order.Uint32(element[12:]))
		} else {
			start, keySize = uint64(order.Uint32(element)), uint64(order.Uint32(element[4:]))
		}
		if keySize == 0 || start+keySize+valueSize > uint64(len(element)) {
			return fmt.Errorf("page %d: element %d is not within it", id, i)
		}
		key, value := element[start:start+keySize], element[start+keySize:start+keySize+valueSize]
		if kind == branchPage {
			value = element[8:16]
		}
		if err := visit(key, value, uint32(flags)); err != nil {
			return err
		}
	}
	return nil
}

// free checks the list of free pages, if there is one. etcd on Linux writes none.
func (p *pages) free() error {
	if p.freelist == noFreelist {
		return nil
	}
	page, kind, err := p.page(p.freelist)
	if err != nil {
		return err
	}
	if kind != freelistPage {
		return fmt.Errorf("page %d: its type is %#x", p.freelist, kind)
	}
	list, count := page[pageHeader:], uint64(order.Uint16(page[10:]))
	if count == math.MaxUint16 {
		list, count = list[8:], order.Uint64(list)
	}
	if count > uint64(len(list))/8 {
		return fmt.Errorf("page %d: it lists %d pages", p.freelist, count)
	}
	for i := range count {
		id := order.Uint64(list[i*8:])
		if id < 2 || id >= p.count || p.seen[id] {
			return fmt.Errorf("page %d: page %d is not free", p.freelist, id)
		}
		p.seen[id] = true
	}
	return nil
}
