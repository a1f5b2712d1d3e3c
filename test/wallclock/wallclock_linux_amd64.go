package wallclock

import (
	"bufio"
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"time"
)

// Clock is the wall clock of a running coxswain. Go reads the time with a function that the kernel maps into each
// process (vdso(7)), and stores its address in a variable. Of sets that variable to the address of code that calls the
// function and adds seconds to its result. CLOCK_MONOTONIC does not change, as when an administrator sets the clock.
type Clock struct {
	memory *os.File
	ahead  int64 // address of the seconds to add
}

// clockCode is called as clock_gettime(edi, rsi). The first blank is for the address of the kernel's function, the
// second for the seconds to add.
var clockCode = []byte{
	0x57,       // push rdi
	0x56,       // push rsi
	0x48, 0xb8, // mov rax, ...
	0, 0, 0, 0, 0, 0, 0, 0,
	0x48, 0x83, 0xec, 0x08, // sub rsp, 8: it must be a multiple of 16 before a call
	0xff, 0xd0, // call rax
	0x48, 0x83, 0xc4, 0x08, // add rsp, 8
	0x5e,       // pop rsi
	0x5f,       // pop rdi
	0x85, 0xff, // test edi, edi: CLOCK_REALTIME is 0
	0x75, 0x0a, // jnz to ret
	0x48, 0x8b, 0x0d, 0x05, 0, 0, 0, // mov rcx, [rip+5]
	0x48, 0x01, 0x0e, // add [rsi], rcx
	0xc3, // ret
	0,    // aligns the seconds to a multiple of 8
	0, 0, 0, 0, 0, 0, 0, 0,
}

const (
	clockCodeCalls = 4  // offset of the first blank
	clockCodeAdds  = 40 // offset of the second blank
)

// mapping is a line of /proc/PID/maps.
type mapping struct {
	from, to, offset int64
	access, name     string
}

// Of takes control of the wall clock of a process. It stops the process for a moment. The caller must close the clock.
func Of(pid int) (c *Clock, err error) {
	memory, err := os.OpenFile(fmt.Sprintf("/proc/%d/mem", pid), os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	c = &Clock{memory: memory}
	defer func() {
		if err != nil {
			_ = c.Close()
		}
	}()
	mappings, err := mappingsOf(pid)
	if err != nil {
		return nil, err
	}
	function, err := c.kernelFunction(mappings)
	if err != nil {
		return nil, err
	}
	variable, err := c.variable(mappings, function)
	if err != nil {
		return nil, err
	}
	code, err := c.room(mappings)
	if err != nil {
		return nil, err
	}
	c.ahead = code + clockCodeAdds
	text := bytes.Clone(clockCode)
	binary.LittleEndian.PutUint64(text[clockCodeCalls:], uint64(function))
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, syscall.Kill(pid, syscall.SIGCONT)) }()
	if err := c.write(code, text); err != nil {
		return nil, err
	}
	return c, c.write(variable, binary.LittleEndian.AppendUint64(nil, uint64(code)))
}

// Step sets the clock ahead of the machine's clock by whole seconds.
func (c *Clock) Step(ahead time.Duration) error {
	return c.write(c.ahead, binary.LittleEndian.AppendUint64(nil, uint64(ahead/time.Second)))
}

// Close releases the process. Its clock keeps the last step.
func (c *Clock) Close() error { return c.memory.Close() }

func (c *Clock) write(address int64, content []byte) error {
	_, err := c.memory.WriteAt(content, address)
	return err
}

func (c *Clock) read(from, to int64) ([]byte, error) {
	content := make([]byte, to-from)
	_, err := c.memory.ReadAt(content, from)
	return content, err
}

func mappingsOf(pid int) (all []mapping, err error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return nil, err
	}
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
		if strings.HasSuffix(lines.Text(), "[vsyscall]") {
			continue // an address of the kernel
		}
		var m mapping
		var device string
		var inode int64
		n, err := fmt.Sscanf(lines.Text(), "%x-%x %s %x %s %d", &m.from, &m.to, &m.access, &m.offset, &device, &inode)
		if n < 6 {
			return nil, fmt.Errorf("%s: %w", lines.Text(), err)
		}
		if fields := strings.Fields(lines.Text()); len(fields) > 5 {
			m.name = fields[5]
		}
		all = append(all, m)
	}
	return all, nil
}

// kernelFunction returns the address of the kernel's function.
func (c *Clock) kernelFunction(mappings []mapping) (int64, error) {
	for _, m := range mappings {
		if m.name != "[vdso]" {
			continue
		}
		image, err := c.read(m.from, m.to)
		if err != nil {
			return 0, err
		}
		file, err := elf.NewFile(bytes.NewReader(image))
		if err != nil {
			return 0, err
		}
		symbols, err := file.DynamicSymbols()
		if err != nil {
			return 0, err
		}
		for _, s := range symbols {
			if s.Name == "__vdso_clock_gettime" {
				return m.from + int64(s.Value), nil
			}
		}
	}
	return 0, errors.New("the kernel maps no clock_gettime")
}

// variable returns the address of the variable of the program that has the given value. It returns an error unless
// there is exactly one.
func (c *Clock) variable(mappings []mapping, value int64) (int64, error) {
	pattern := binary.LittleEndian.AppendUint64(nil, uint64(value))
	var matches []int64
	end := int64(0) // end of the program's mappings, including adjacent ones
	for _, m := range mappings {
		if m.name != mappings[0].name && m.from != end {
			continue
		}
		end = m.to
		if !strings.HasPrefix(m.access, "rw") {
			continue
		}
		content, err := c.read(m.from, m.to)
		if err != nil {
			return 0, err
		}
		for i := 0; i+8 <= len(content); i += 8 {
			if bytes.Equal(content[i:i+8], pattern) {
				matches = append(matches, m.from+int64(i))
			}
		}
	}
	if len(matches) != 1 {
		return 0, fmt.Errorf("%d variables are %#x", len(matches), value)
	}
	return matches[0], nil
}

// room returns an address with room for the code, between the headers of the program and its first function.
func (c *Clock) room(mappings []mapping) (int64, error) {
	m := mappings[0]
	if m.offset != 0 || !strings.HasPrefix(m.access, "r-x") {
		return 0, fmt.Errorf("unexpected first mapping %+v", m)
	}
	const page = 4 << 10
	head, err := c.read(m.from, m.from+page)
	if err != nil {
		return 0, err
	}
	for i := 64; i+64 <= page; i += 64 {
		if bytes.Count(head[i:i+64], []byte{0}) == 64 {
			return m.from + int64(i), nil
		}
	}
	return 0, errors.New("no room for code")
}
