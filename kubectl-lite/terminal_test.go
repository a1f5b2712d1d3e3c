package kubectllite

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/coxswain-dev/coxswain/kubectl-lite/clitest"
	"github.com/coxswain-dev/coxswain/kubectl-lite/session"
	"github.com/coxswain-dev/coxswain/testenv"
)

func TestMain(m *testing.M) { clitest.Main(m, Main) }

// pseudoTerminal is a pseudo-terminal with kubectl-lite in its foreground, and the screen that a user sees.
type pseudoTerminal struct {
	t      *testing.T
	master *os.File
	cmd    *exec.Cmd
	done   chan error
	read   sync.WaitGroup

	mu     sync.Mutex
	screen *screen
	raw    strings.Builder
}

func openTerminal(t *testing.T, width, height int, args ...string) *pseudoTerminal {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Skipf("SKIPPED: the live views are not tested, for this machine has no pseudo-terminals: %v", err)
	}
	number, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	require.NoError(t, err)
	require.NoError(t, unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0))
	slave, err := os.OpenFile("/dev/pts/"+strconv.Itoa(number), os.O_RDWR|unix.O_NOCTTY, 0)
	require.NoError(t, err)
	term := &pseudoTerminal{t: t, master: master, done: make(chan error, 1), screen: newScreen(width, height)}
	term.resize(width, height)
	term.cmd = exec.Command(os.Args[0], args...)
	term.cmd.Env = append(os.Environ(), clitest.ChildVariable+"=1", "TERM=xterm")
	term.cmd.Stdin, term.cmd.Stdout, term.cmd.Stderr = slave, slave, slave
	term.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	require.NoError(t, term.cmd.Start())
	require.NoError(t, slave.Close())
	term.read.Go(term.show)
	go func() { term.done <- term.cmd.Wait() }()
	t.Cleanup(func() {
		_ = term.cmd.Process.Kill() // fails if it has ended
		term.read.Wait()
		_ = master.Close()
	})
	return term
}

// show writes the output to the screen until the other end is closed.
func (term *pseudoTerminal) show() {
	buf := make([]byte, 4096)
	for {
		n, err := term.master.Read(buf)
		term.mu.Lock()
		term.screen.write(string(buf[:n]))
		term.raw.Write(buf[:n])
		term.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// resize changes the size, like dragging the window's corner. The kernel signals the process in the foreground.
func (term *pseudoTerminal) resize(width, height int) {
	term.t.Helper()
	require.NoError(term.t, unix.IoctlSetWinsize(int(term.master.Fd()), unix.TIOCSWINSZ,
		&unix.Winsize{Col: uint16(width), Row: uint16(height)}))
	term.mu.Lock()
	defer term.mu.Unlock()
	term.screen.width, term.screen.height = width, height
}

func (term *pseudoTerminal) press(keys string) {
	term.t.Helper()
	_, err := term.master.WriteString(keys)
	require.NoError(term.t, err)
}

func (term *pseudoTerminal) lines() []string {
	term.mu.Lock()
	defer term.mu.Unlock()
	return term.screen.text()
}

// see waits for a line that begins with each of these words, spaces evened out.
func (term *pseudoTerminal) see(subject string, fits func(lines []string) bool) {
	term.t.Helper()
	require.Eventually(term.t, func() bool { return fits(term.lines()) }, 30*time.Second, 5*time.Millisecond,
		"%s; the screen shows:\n%s", subject, lazy(func() string { return strings.Join(term.lines(), "\n") }))
}

// lazy is a text that is computed when it is printed.
type lazy func() string

func (l lazy) String() string { return l() }

func has(lines []string, prefix string) bool {
	for _, line := range lines {
		if strings.HasPrefix(strings.Join(strings.Fields(line), " "), prefix) {
			return true
		}
	}
	return false
}

// end waits for the process and returns its exit code.
func (term *pseudoTerminal) end() int {
	term.t.Helper()
	select {
	case <-term.done:
	case <-time.After(30 * time.Second):
		require.Fail(term.t, "the command does not end", strings.Join(term.lines(), "\n"))
	}
	return term.cmd.ProcessState.ExitCode()
}

// requireClean checks that the terminal is restored: the main screen, with a cursor.
func (term *pseudoTerminal) requireClean() {
	term.t.Helper()
	term.read.Wait() // the screen has the whole output
	term.mu.Lock()
	defer term.mu.Unlock()
	require.False(term.t, term.screen.alternate, "the screen is still the command's own")
	require.False(term.t, term.screen.hidden, "the cursor is hidden")
}

// screen interprets the escape sequences of live views. An unknown one appears among the lines, so that the test fails.
type screen struct {
	width, height     int
	rows, saved       [][]rune
	row, col          int
	alternate, hidden bool
	pending           string
	unknown           []string
}

func newScreen(width, height int) *screen { return &screen{width: width, height: height} }

func (s *screen) write(text string) {
	text = s.pending + text
	s.pending = ""
	for text != "" {
		if text[0] == '\x1b' {
			end := strings.IndexFunc(text[1:], func(r rune) bool { return r != '[' && r >= '@' })
			if end < 0 {
				s.pending = text
				return
			}
			s.escape(text[1 : end+2])
			text = text[end+2:]
			continue
		}
		if !strings.Contains(text, "\x1b") && !validSuffix(text) {
			// a rune may be cut in two at the end of a read
			cutAt := len(text) - 1
			for cutAt > 0 && text[cutAt]&0xC0 == 0x80 {
				cutAt--
			}
			s.pending, text = text[cutAt:], text[:cutAt]
			if text == "" {
				return
			}
		}
		for i, r := range text {
			if r == '\x1b' {
				text = text[i:]
				break
			}
			s.put(r)
			if i+len(string(r)) >= len(text) {
				text = ""
			}
		}
	}
}

// validSuffix reports whether the text does not end within a rune.
func validSuffix(text string) bool { return strings.ToValidUTF8(text, "") == text }

func (s *screen) put(r rune) {
	switch r {
	case '\r':
		s.col = 0
	case '\n':
		s.row++
	default:
		for len(s.rows) <= s.row {
			s.rows = append(s.rows, nil)
		}
		for len(s.rows[s.row]) <= s.col {
			s.rows[s.row] = append(s.rows[s.row], ' ')
		}
		s.rows[s.row][s.col] = r
		s.col++
	}
}

func (s *screen) escape(sequence string) {
	switch sequence {
	case "[?1049h":
		s.saved, s.rows, s.alternate = s.rows, nil, true
		s.row, s.col = 0, 0
	case "[?1049l":
		s.rows, s.alternate = s.saved, false
		s.row, s.col = len(s.rows), 0
	case "[?25l":
		s.hidden = true
	case "[?25h":
		s.hidden = false
	case "[H":
		s.row, s.col = 0, 0
	case "[K":
		if s.row < len(s.rows) && s.col < len(s.rows[s.row]) {
			s.rows[s.row] = s.rows[s.row][:s.col]
		}
	case "[J":
		if s.row < len(s.rows) {
			if s.col < len(s.rows[s.row]) {
				s.rows[s.row] = s.rows[s.row][:s.col]
			}
			s.rows = s.rows[:s.row+1]
		}
	default:
		if strings.HasSuffix(sequence, "m") {
			return // a colour
		}
		s.unknown = append(s.unknown, sequence)
	}
}

func (s *screen) text() []string {
	lines := make([]string, len(s.rows))
	for i, row := range s.rows {
		lines[i] = string(row)
	}
	for _, sequence := range s.unknown {
		lines = append(lines, "unknown escape sequence "+sequence)
	}
	return lines
}

func TestTerminal_GetWatchUpdatesInPlaceAndRestoresTheTerminal(t *testing.T) {
	t.Parallel()
	f := newFakeServer(t)
	require.Zero(t, f.run(t, "", "create", "configmap", "one").Code)
	term := openTerminal(t, 60, 10, "--kubeconfig", f.kubeconfig(t), "--cache-dir", t.TempDir(), "get", "cm", "-w")
	term.see("the first row", func(lines []string) bool { return has(lines, "one") })
	watching := func() bool { f.mu.Lock(); defer f.mu.Unlock(); return len(f.watchers) == 1 }
	require.Eventually(t, watching, 30*time.Second, time.Millisecond)
	require.Zero(t, f.run(t, "", "create", "configmap", "two").Code)
	term.see("a row that came", func(lines []string) bool { return has(lines, "one") && has(lines, "two") })
	require.Zero(t, f.run(t, "", "delete", "configmap", "one", "--wait=false").Code)
	term.see("a row that went, in place", func(lines []string) bool {
		return len(lines) == 2 && has(lines, "NAME") && has(lines, "two")
	})

	for i := range 12 {
		require.Zero(t, f.run(t, "", "create", "configmap", fmt.Sprintf("more-%02d", i)).Code)
	}
	term.see("as many rows as fit", func(lines []string) bool { return len(lines) == 10 && has(lines, "… 5 more") })
	term.resize(4, 6)
	term.see("what fits a smaller window", func(lines []string) bool {
		return len(lines) == 6 && has(lines, "more") && has(lines, "NAME")
	})
	term.resize(60, 40)
	term.see("all of them in a larger window", func(lines []string) bool {
		return len(lines) == 14 && has(lines, "more-11")
	})

	term.press("\x03")
	require.Equal(t, session.Interrupted, term.end())
	term.requireClean()
	require.True(t, has(term.lines(), "two"), "the last picture stays below the command")
}

func TestTerminal_GetWatchResumesAfterADisconnect(t *testing.T) {
	t.Parallel()
	f := newFakeServer(t)
	require.Zero(t, f.run(t, "", "create", "configmap", "one").Code)
	term := openTerminal(t, 60, 10, "--kubeconfig", f.kubeconfig(t), "--cache-dir", t.TempDir(), "get", "cm", "-w")
	watchers := func() int { f.mu.Lock(); defer f.mu.Unlock(); return len(f.watchers) }
	require.Eventually(t, func() bool { return watchers() == 1 }, 30*time.Second, time.Millisecond)
	f.CloseClientConnections()
	require.Eventually(t, func() bool {
		return watchers() == 1 && f.asked("watch=true") >= 2
	}, 30*time.Second, time.Millisecond, "the watch is taken up again")
	require.Zero(t, f.run(t, "", "create", "configmap", "two").Code)
	term.see("what came after the disconnect", func(lines []string) bool {
		return has(lines, "one") && has(lines, "two")
	})
	term.press("\x03")
	require.Equal(t, session.Interrupted, term.end())
	term.requireClean()
}

func TestTerminal_TreeAndRolloutAreLive(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	kubeconfig := filepath.Join(dir, "config")
	require.NoError(t, clitest.WriteKubeconfig(testenv.Start(t), kubeconfig))
	l := clitest.Live{Kubeconfig: kubeconfig, Cache: filepath.Join(dir, "cache")}
	l.Succeed(t, clitest.WebManifest, "apply -f -")
	flags := []string{"--kubeconfig=" + kubeconfig, "--cache-dir=" + l.Cache}

	tree := openTerminal(t, 100, 30, append(flags, "tree", "deploy/web", "-w")...)
	tree.see("the pods of the deployment", func(lines []string) bool {
		return has(lines, "Deployment/web 2/2") && len(lines) == 5
	})
	l.Succeed(t, "", "scale deploy/web --replicas=4")
	tree.see("the pods that were added", func(lines []string) bool {
		return has(lines, "Deployment/web 4/4") && len(lines) == 7
	})
	tree.press("\x03")
	require.Equal(t, session.Interrupted, tree.end())
	tree.requireClean()

	l.Succeed(t, "", "rollout pause deploy/web")
	l.Succeed(t, "", "set image deploy/web nginx=nginx:2")
	rollout := openTerminal(t, 100, 30, append(flags, "rollout", "status", "deploy/web")...)
	rollout.see("a full bar for the old ReplicaSet", func(lines []string) bool {
		return strings.Contains(strings.Join(lines, "\n"), strings.Repeat("█", barWidth)+"  4/4 ready  revision 1")
	})
	l.Succeed(t, "", "rollout resume deploy/web")
	require.Zero(t, rollout.end(), lazy(func() string { return strings.Join(rollout.lines(), "\n") }))
	rollout.requireClean()
	last := strings.Join(rollout.lines(), "\n")
	require.Contains(t, last, "4/4 ready  revision 2")
	require.Contains(t, last, `deployment "web" successfully rolled out`)
}

func TestTerminal_ExecSendsKeysAndSizes(t *testing.T) {
	t.Parallel()
	s := newStreamServer(t)
	term := openTerminal(t, 60, 10, "--kubeconfig", s.kubeconfig(t), "--cache-dir", t.TempDir(), "exec", "-it", "web-0",
		"-c", "c", "--", "head", "-c", "6")
	received := func(size string) func() bool {
		return func() bool {
			s.mu.Lock()
			defer s.mu.Unlock()
			return len(s.sizes) > 0 && strings.TrimSpace(s.sizes[len(s.sizes)-1]) == size
		}
	}
	require.Eventually(t, received(`{"Width":60,"Height":10}`), 30*time.Second, time.Millisecond)
	term.resize(70, 20)
	require.Eventually(t, received(`{"Width":70,"Height":20}`), 30*time.Second, time.Millisecond)
	term.press("a\x03bcd\r") // in raw mode Ctrl-C is a key like any other
	require.Zero(t, term.end())
	term.requireClean()
	term.mu.Lock()
	defer term.mu.Unlock()
	require.Contains(t, term.raw.String(), "a\x03bcd\r")
}
