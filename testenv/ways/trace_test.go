// Package ways traces requests and objects on their way through the code, and compares the packages and functions that
// they pass with the ways in docs/architecture.md. A way that has changed fails its test; with -update the test renews
// the document.
//
// The code itself has no tracing. A test starts servers and components with parts of its own: a backend, registrations,
// certificate authorities, a client and so on (hooks_test.go). Each call of such a hook keeps the stack of its
// goroutine. A call that has returned before is not on that stack: a way leads from hook to hook, and is not a list of
// all calls.
package ways_test

import (
	"flag"
	"fmt"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/coxswain-dev/coxswain/testenv/leak"
)

const module = "github.com/coxswain-dev/coxswain/"

var update = flag.Bool("update", false, "write the ways to docs/architecture.md")

func TestMain(m *testing.M) { leak.VerifyTestMain(m) }

// trace keeps the stacks of a way. Its methods are safe for concurrent use.
type trace struct {
	mu     sync.Mutex
	on     bool
	stacks [][]entry // outermost call first
}

// entry is a call of a function of pkg by another package of this module, in its function caller. inner is the function
// of pkg that makes the next call. If that is the call of a hook, call may name it.
type entry struct{ pkg, function, caller, inner, call string }

// start drops all stacks, and keeps the next ones until stop.
func (tr *trace) start() {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	tr.on, tr.stacks = true, nil
}

// stop ends the trace and returns the stacks since start.
func (tr *trace) stop() [][]entry {
	tr.mu.Lock()
	tr.on = false
	tr.mu.Unlock()
	return tr.kept()
}

// kept returns the stacks since start.
func (tr *trace) kept() [][]entry {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	return slices.Clone(tr.stacks)
}

// add keeps the stack of its caller. call, if not empty, names the hook for the document.
func (tr *trace) add(call string) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	if !tr.on {
		return
	}
	if stack := entries(); len(stack) > 0 {
		stack[len(stack)-1].call = call
		tr.stacks = append(tr.stacks, stack)
	}
}

// called returns the first stack of each of the calls, which must come in this order. A call has the package before it
// ("node PATCH pods/status"). It waits for calls that have not come yet.
func (tr *trace) called(t *testing.T, calls ...string) (some [][]entry) {
	t.Helper()
	first := func(call string) int {
		return slices.IndexFunc(tr.kept(), func(stack []entry) bool {
			last := stack[len(stack)-1]
			return last.call != "" && last.pkg+" "+last.call == call
		})
	}
	last := -1
	for _, call := range calls {
		require.Eventually(t, func() bool { return first(call) >= 0 }, time.Minute, time.Millisecond, call)
		i := first(call)
		require.Greater(t, i, last, "%s comes too early", call)
		last, some = i, append(some, tr.kept()[i])
	}
	return some
}

// closure matches the parts that the compiler adds to the names of functions.
var closure = regexp.MustCompile(`\.func\d.*|\.gowrap\d.*|-fm.*|-range\d.*|\[\.\.\.\]|[(*)]`)

// entries returns the entries of the present goroutine's stack. Packages of tests are left out.
func entries() (stack []entry) {
	pcs := make([]uintptr, 256)
	frames := runtime.CallersFrames(pcs[:runtime.Callers(3, pcs)])
	for more := true; more; {
		var f runtime.Frame
		f, more = frames.Next()
		name, ours := strings.CutPrefix(f.Function, module)
		if !ours || strings.Contains(name, "_test.") {
			continue
		}
		dot := strings.LastIndexByte(name, '/') + 1
		dot += strings.IndexByte(name[dot:], '.')
		pkg, function := name[:dot], closure.ReplaceAllString(name[dot+1:], "")
		if len(stack) > 0 && stack[0].pkg == pkg {
			stack[0].function = function
			continue
		}
		if len(stack) > 0 {
			stack[0].caller = function
		}
		stack = append([]entry{{pkg: pkg, function: function, inner: function}}, stack...)
	}
	return stack
}

// draw draws stacks as a tree. Each entry has a line, where it comes first below the entries before it.
func draw(stacks ...[]entry) string {
	root := &branch{}
	for _, stack := range stacks {
		at := root
		for _, e := range stack {
			at = at.enter(e)
		}
	}
	var text strings.Builder
	root.write(&text, 0)
	return text.String()
}

// branch is an entry of a tree, with the entries below it in order.
type branch struct {
	entry
	below []*branch
}

func (b *branch) enter(e entry) *branch {
	for _, known := range b.below {
		if known.pkg == e.pkg && known.function == e.function && known.call == e.call {
			return known
		}
	}
	b.below = append(b.below, &branch{entry: e})
	return b.below[len(b.below)-1]
}

func (b *branch) write(text *strings.Builder, depth int) {
	for _, next := range b.below {
		indent := strings.Repeat("  ", depth)
		line := fmt.Sprintf("%-40s%-29s", indent+next.pkg, next.function)
		if next.caller != "" {
			line += "from " + next.caller
		}
		text.WriteString(strings.TrimRight(line, " ") + "\n")
		if next.call != "" {
			fmt.Fprintf(text, "%s  %s: %s\n", indent, next.inner, next.call)
		}
		next.write(text, depth+1)
	}
}

// documented compares a way with the document's, or writes it there.
func documented(t *testing.T, name, way string) {
	t.Helper()
	const file = "../../docs/architecture.md"
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	_, rest, found := strings.Cut(string(text), "<!-- way: "+name+" -->\n```\n")
	require.True(t, found, "docs/architecture.md has no way %q", name)
	present, _, found := strings.Cut(rest, "```\n")
	require.True(t, found)
	if *update && way != present {
		changed := string(text[:len(text)-len(rest)]) + way + rest[len(present):]
		require.NoError(t, os.WriteFile(file, []byte(changed), 0o644))
		return
	}
	require.Equal(t, present, way, "%s goes another way than docs/architecture.md has it. If it is meant to:\n"+
		"go test ./testenv/ways -update", name)
}
