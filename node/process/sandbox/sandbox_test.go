//go:build linux

package sandbox

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// idleVariable makes this program, as a container's command, wait until it is killed.
const idleVariable = "SANDBOX_TEST_IDLE"

func TestMain(m *testing.M) {
	Main()
	if os.Getenv(idleVariable) != "" {
		_ = syscall.Pause()
	}
	os.Exit(m.Run())
}

const (
	patience = 30 * time.Second
	step     = 20 * time.Millisecond
)

// sleeper starts a process of the host that sleeps until it is killed.
func sleeper(t *testing.T) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("sleep", "1000")
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	return cmd
}

// startPod starts a pod that ends with the test, and then checks that it has left no files and cgroups.
func startPod(t *testing.T, change ...func(*Config)) *Pod {
	t.Helper()
	if err := Supported(); err != nil {
		t.Skipf("SKIPPED: containers as processes take root, namespaces and cgroups, and are not tested here: %v", err)
	}
	dir := filepath.Join(t.TempDir(), "pod")
	sandbox := Config{Dir: dir, Hostname: "web-0", IP: "10.211.0.7"}
	for _, f := range change {
		f(&sandbox)
	}
	p, err := Start(sandbox)
	require.NoError(t, err)
	t.Cleanup(func() {
		if p.Remove(context.Background(), cgroupOf(p)) == nil {
			require.NoDirExists(t, dir)
		} else {
			t.Errorf("the pod cannot be removed: %v", p.Remove(context.Background(), cgroupOf(p)))
		}
		for _, folder := range findCgroups(cgroupRoot).folders(cgroupOf(p)) {
			require.NoDirExists(t, folder)
		}
	})
	return p
}

func cgroupOf(p *Pod) string {
	return "coxswain-test/" + strings.ReplaceAll(strings.Trim(p.Dir, "/"), "/", "-")
}

// shell returns a container that runs a script.
func shell(p *Pod, script string) *Container {
	return &Container{
		Name: "c", Args: []string{"sh", "-c", script}, Env: []string{"PATH=" + defaultPath, "GREETING=hello"},
		Cgroup: cgroupOf(p) + "/c", Capabilities: []int{CapabilityNumbers["CHOWN"], CapabilityNumbers["KILL"]},
	}
}

func finish(t *testing.T, p *Pod, c *Container) (*Exit, string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	require.NoError(t, p.Run(t.Context(), c))
	exit, err := p.Wait(ctx, c.Name, c.Run)
	require.NoError(t, err)
	return exit, logOf(t, p, c)
}

func logOf(t *testing.T, p *Pod, c *Container) string {
	t.Helper()
	r, err := OpenLog(LogPath(p.Dir, c.Name, c.Run))
	require.NoError(t, err)
	defer r.Close()
	var all strings.Builder
	for {
		_, stream, text, partial, err := r.Next()
		if errors.Is(err, io.EOF) {
			return all.String()
		}
		require.NoError(t, err)
		if stream == "stderr" {
			all.WriteString("! ")
		}
		all.Write(text)
		if !partial {
			all.WriteByte('\n')
		}
	}
}

func TestContainer_IsIsolatedFromTheHost(t *testing.T) {
	t.Parallel()
	p := startPod(t)
	volume := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(volume, "key"), []byte("value\n"), 0o644))
	require.NoError(t, os.Mkdir(filepath.Join(volume, "sub"), 0o755))
	secret := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(secret, "ca.key"), nil, 0o600))
	c := shell(p, `echo $GREETING; echo oops >&2; echo pid $$; hostname; cat /config/key; echo more > /data/file; ls /tmp `+secret+` | wc -l
		cat /proc/net/fib_trie | grep -c 10.211.0.7; touch /etc/touched && ls /etc/touched; echo x > /config/key; mknod /tmp/disk b 8 0; exit 7`)
	c.Mounts = []Mount{{Source: volume, Target: "/config", ReadOnly: true},
		{Source: volume, SubPath: "sub", Target: "/data"}}
	c.Hide = []string{secret}
	exit, log := finish(t, p, c)
	require.EqualValues(t, 7, exit.Code)
	require.Contains(t, log, "hello\n")
	require.Contains(t, log, "! oops\n")
	require.Contains(t, log, "pid 1\n")
	require.Contains(t, log, "web-0\n")
	require.Contains(t, log, "value\n")
	require.Contains(t, log, "/etc/touched\n")
	require.NotContains(t, log, "ca.key")
	require.Contains(t, log, "Read-only file system")
	require.Contains(t, log, "Operation not permitted", "it makes no devices")
	require.NoFileExists(t, "/etc/touched")
	more, err := os.ReadFile(filepath.Join(volume, "sub", "file"))
	require.NoError(t, err)
	require.Equal(t, "more\n", string(more))
}

func TestContainer_RunsAsItsUserOrFailsToStart(t *testing.T) {
	t.Parallel()
	p := startPod(t)
	c := shell(p, "id -u; id -g; id -G; echo through the device > /dev/stdout; cat /etc/shadow")
	c.UID, c.GID, c.Groups = 1234, 2345, []uint32{2345, 3456}
	exit, log := finish(t, p, c)
	require.NotZero(t, exit.Code)
	// the order of the two outputs is undefined
	for _, line := range []string{"1234\n", "2345\n", "2345 3456\n", "through the device\n"} {
		require.Contains(t, log, line)
	}
	require.Contains(t, log, "/etc/shadow: Permission denied")

	c = shell(p, "")
	c.Args, c.Run = []string{"no-such-program"}, 1
	err := p.Run(t.Context(), c)
	var start *StartError
	require.ErrorAs(t, err, &start)
	require.EqualError(t, err, `exec: "no-such-program": executable file not found in $PATH`)
}

func TestContainer_IsKilledAtItsMemoryLimit(t *testing.T) {
	t.Parallel()
	p := startPod(t)
	c := shell(p, `exec perl -e '$x = "a" x (256 << 20); sleep 60'`)
	c.Limits.MemoryBytes = 32 << 20
	exit, _ := finish(t, p, c)
	require.EqualValues(t, 137, exit.Code)
	require.True(t, exit.OOMKilled)
}

func TestPod_IsAdoptedAndAnswers(t *testing.T) {
	t.Parallel()
	p := startPod(t)
	c := shell(p, `trap "echo bye; exit 3" TERM; echo up; read line; echo got $line; while :; do sleep 0.05; done`)
	c.Stdin = true
	require.NoError(t, p.Run(t.Context(), c))

	p = Adopt(p.Config) // like another agent
	require.True(t, p.Alive())
	attached, err := p.Attach("c", 0)
	require.NoError(t, err)
	defer attached.Close()
	_, err = io.WriteString(attached.Stdin, "this\n")
	require.NoError(t, err)
	got := make([]byte, len("got this\n"))
	_, err = io.ReadFull(attached.Stdout, got)
	require.NoError(t, err)
	require.Contains(t, string(got), "got")

	s, err := p.Exec("c", 0, []string{"sh", "-c", "cat; hostname; ps -e | wc -l; exit 5"}, true, false)
	require.NoError(t, err)
	_, _ = io.WriteString(s.Stdin, "over\n")
	_ = s.Stdin.Close()
	out, err := io.ReadAll(s.Stdout)
	require.NoError(t, err)
	require.Contains(t, string(out), "over\nweb-0\n")
	exit, err := s.Wait()
	require.NoError(t, err)
	require.EqualValues(t, 5, exit.Code)
	s.Close()

	s, err = p.Exec("c", 0, []string{"sh", "-c", "tty; stty size; exit 0"}, true, true)
	require.NoError(t, err)
	s.Resize(132, 43)
	out, _ = io.ReadAll(s.Terminal) // always ends with an error
	require.Contains(t, string(out), "/dev/pts/0")
	s.Close()

	cpu, memory, err := Usage(c.Cgroup)
	require.NoError(t, err)
	require.Positive(t, memory)
	require.GreaterOrEqual(t, cpu, 0.0)

	require.NoError(t, p.Signal("c", 0, syscall.SIGTERM))
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	exit, err = p.Wait(ctx, "c", 0)
	require.NoError(t, err)
	require.EqualValues(t, 3, exit.Code)
	require.Contains(t, logOf(t, p, c), "up\ngot this\nbye\n")
}

func TestPod_ForwardsToItsOwnLoopback(t *testing.T) {
	t.Parallel()
	p := startPod(t)
	c := shell(p, `exec perl -MIO::Socket::INET -e '$s = IO::Socket::INET->new(Listen => 5, LocalAddr => "0.0.0.0", LocalPort => 80, ReuseAddr => 1) or die $!; print "up\n"; $| = 1; while ($c = $s->accept) { print $c "hi\n"; close $c }'`)
	c.Capabilities = append(c.Capabilities, CapabilityNumbers["NET_BIND_SERVICE"])
	require.NoError(t, p.Run(t.Context(), c))
	require.Eventually(t, func() bool {
		conn, err := p.Dial(t.Context(), "10.211.0.7", 80)
		if err != nil {
			return false
		}
		defer conn.Close()
		text, _ := io.ReadAll(conn)
		return string(text) == "hi\n"
	}, patience, 20*time.Millisecond)
}

func TestPod_PausesWithoutACommandAndDiesWithItsShim(t *testing.T) {
	t.Parallel()
	p := startPod(t)
	c := shell(p, "")
	c.Args = nil
	require.NoError(t, p.Run(t.Context(), c))
	require.NoError(t, p.Signal("c", 0, syscall.SIGTERM))
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	exit, err := p.Wait(ctx, "c", 0)
	require.NoError(t, err)
	require.Zero(t, exit.Code)

	c = shell(p, "sleep 1000")
	c.Run = 1
	require.NoError(t, p.Run(t.Context(), c))
	require.NoError(t, p.Stop(t.Context(), cgroupOf(p)))
	exit, err = p.Wait(ctx, "c", 1)
	require.NoError(t, err, "its record stays")
	require.EqualValues(t, 137, exit.Code)
	require.False(t, p.Alive())
}

func TestPod_SharesItsPIDNamespace(t *testing.T) {
	t.Parallel()
	p := startPod(t, func(s *Config) { s.SharePIDs = true })
	// The script leaves a process behind, which must end with it, and an orphaned process, which must be reaped.
	work := shell(p, "sleep 1234 & (sleep 0.01 &) ; sleep 1000")
	require.NoError(t, p.Run(t.Context(), work))
	other := shell(p,
		`until ps -e -o args= | grep -q "^sleep 1234"; do sleep 0.02; done; echo seen; ls /proc/1/root; kill -9 1; exit 0`)
	other.Name, other.Cgroup = "other", cgroupOf(p)+"/other"
	exit, log := finish(t, p, other)
	require.Zero(t, exit.Code)
	require.Contains(t, log, "seen\n")
	require.Contains(t, log, "Permission denied", "the reaper's files are nobody's business")
	require.NoError(t, p.Signal("c", 0, syscall.SIGKILL))
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	exit, err := p.Wait(ctx, "c", 0)
	require.NoError(t, err)
	require.EqualValues(t, 137, exit.Code)
	last := shell(p, `ps -e -o args= | grep -c "^sleep 1234"; ps -e -o stat= | grep -c ^Z`)
	last.Name, last.Cgroup = "last", cgroupOf(p)+"/last"
	_, log = finish(t, p, last)
	require.Equal(t, "0\n0\n", log)
}

func TestPod_LetsADebuggerSeeItsTarget(t *testing.T) {
	t.Parallel()
	p := startPod(t)
	require.NoError(t, p.Run(t.Context(), shell(p, "exec sleep 4321")))
	apart := shell(p, `ps -e -o args= | grep -c "^sleep 4321"; exit 0`)
	apart.Name, apart.Cgroup = "apart", cgroupOf(p)+"/apart"
	_, log := finish(t, p, apart)
	require.Equal(t, "0\n", log)
	debug := shell(p, `until [ "$(ps -p 1 -o args=)" = "sleep 4321" ]; do sleep 0.02; done; echo seen`)
	debug.Name, debug.Cgroup, debug.Target = "debug", cgroupOf(p)+"/debug", "c"
	_, log = finish(t, p, debug)
	require.Equal(t, "seen\n", log)
	debug.Name, debug.Target = "lost", "nobody"
	var start *StartError
	require.ErrorAs(t, p.Run(t.Context(), debug), &start)
	require.EqualError(t, start, `target container "nobody" is not running`)
}
