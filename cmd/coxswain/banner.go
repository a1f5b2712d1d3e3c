package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"

	"github.com/coxswain-dev/coxswain/apiserver"
	"github.com/coxswain-dev/coxswain/node"
)

// nodesPatience is how long the banner waits for the Nodes. Thousands of them take longer, but users should not have to
// wait for the banner.
const nodesPatience = 10 * time.Second

// banner announces the control plane, and suggests the next commands.
type banner struct {
	*running
	started, served time.Time
	nodes           int
	commands        []string // kubectl's, to begin with
	programs        bool     // pods run programs, which outlive this process
}

// firstCommands returns kubectl commands to suggest: one that shows something, one that creates something, and one that
// shows the result.
func firstCommands(runtime string) []string {
	if runtime == node.Process {
		return []string{"get nodes", "run web --image=none --command -- sh -c 'echo hello; sleep 3600'", "logs web"}
	}
	return []string{"get nodes", "create deployment web --image=web --replicas=3", "get pods"}
}

// showWhenReady runs the components until ctx ends or one fails, and shows the banner when the Nodes are Ready, after
// nodesPatience at the latest.
func (b banner) showWhenReady(ctx context.Context, w io.Writer, n *nodeFlags,
	components func(context.Context) error) error {
	ready := make(chan struct{})
	n.ready = func() { close(ready) }
	if b.nodes == 0 {
		n.ready()
	}
	ctx, cancel := context.WithCancel(ctx)
	shown := make(chan struct{})
	go func() {
		defer close(shown)
		select {
		case <-ready:
			state := ""
			if b.nodes > 0 {
				state = fmt.Sprintf(", %s Ready after %d ms", countedNodes(b.nodes),
					time.Since(b.started).Milliseconds())
			}
			b.show(w, state)
		case <-time.After(nodesPatience):
			b.show(w, fmt.Sprintf("; not all Nodes are Ready after %s", nodesPatience))
		case <-ctx.Done():
		}
	}()
	err := components(ctx)
	cancel()
	<-shown
	return err
}

func countedNodes(nodes int) string {
	if nodes == 1 {
		return "1 Node"
	}
	return fmt.Sprintf("%d Nodes", nodes)
}

// show prints the banner, and notifies systemd that the unit has started. state describes the Nodes.
func (b banner) show(w io.Writer, state string) {
	if _, err := daemon.SdNotify(true, daemon.SdNotifyReady); err != nil {
		slog.Warn("failed to notify systemd that the server is ready", "err", err)
	}
	dir, err := filepath.Abs(b.dir)
	if err != nil {
		dir = b.dir
	}
	var commands strings.Builder
	kubectl := clientCommand()
	for _, c := range b.commands {
		fmt.Fprintf(&commands, "  %s %s\n", kubectl, c)
	}
	storage := fmt.Sprintf("Its data stays in %s;\ndelete that folder to start from scratch.", dir)
	if b.inMemory {
		storage = "Its data is in memory only, and is lost then."
	}
	if b.programs {
		storage += fmt.Sprintf("\nPods keep running without it, and the next start takes them over. To end them:\n\n"+
			"  %s node --cleanup --root-dir %s", ownCommand(), shellWord(filepath.Join(dir, "node")))
	}
	fmt.Fprintf(w, `Coxswain %s serves %s after %d ms%s.

In another terminal:

  export KUBECONFIG=%s
%s
Ctrl-C here, or kill %d, stops it. %s
`, apiserver.Version, b.url, b.served.Sub(b.started).Milliseconds(), state,
		shellWord(filepath.Join(dir, "admin.kubeconfig")), commands.String(), os.Getpid(), storage)
}

// ownCommand returns the command of this program for a shell.
func ownCommand() string {
	self, err := os.Executable()
	if err != nil {
		return "coxswain"
	}
	return shellWord(self)
}

// clientCommand returns the command of this machine's kubectl or, if there is none, of the kubectl-lite beside this
// program.
func clientCommand() string {
	const kubectl = "kubectl"
	if _, err := exec.LookPath(kubectl); err == nil {
		return kubectl
	}
	self, err := os.Executable()
	if err != nil {
		return kubectl
	}
	lite := filepath.Join(filepath.Dir(self), "kubectl-lite")
	if _, err := os.Stat(lite); err != nil {
		return kubectl
	}
	return shellWord(lite)
}

var plainWord = regexp.MustCompile(`^[A-Za-z0-9_@%+=:,./-]+$`)

// shellWord quotes a text for a shell where that is necessary.
func shellWord(text string) string {
	if plainWord.MatchString(text) {
		return text
	}
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}
