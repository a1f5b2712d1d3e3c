// Command coxswain is a Kubernetes control plane in one binary: `coxswain up` runs all of it in one process, and the
// other subcommands run one part each. Under the names etcd and kube-apiserver, the program behaves as envtest expects
// of these programs. Under the name coxswain-cni, it is the CNI plugin that container runtimes start. This package
// contains only flags and assembly.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"k8s.io/klog/v2"

	"github.com/coxswain-dev/coxswain/apiserver"
	"github.com/coxswain-dev/coxswain/cmd/coxswain/certs"
	"github.com/coxswain-dev/coxswain/cmd/coxswain/ownprocess"
	"github.com/coxswain-dev/coxswain/network/cni"
	"github.com/coxswain-dev/coxswain/node/process/sandbox"
)

func main() {
	sandbox.Main() // does not return if this process is a container's shim
	name := strings.TrimSuffix(filepath.Base(os.Args[0]), ".exe")
	switch name {
	case "etcd":
		runEtcd(os.Args[1:])
	case cni.Plugin:
		cni.Main()
		return
	case cni.Loopback:
		cni.LoopbackMain()
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// The first signal starts an orderly shutdown; a second one exits the process at once.
	context.AfterFunc(ctx, stop)
	ownprocess.PaceCollections()
	cmd := newCommand()
	if name == "kube-apiserver" {
		cmd = newKubeAPIServer()
	}
	if err := cmd.ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "Error:", err)
		os.Exit(1)
	}
}

func newCommand() *cobra.Command {
	var level, format string
	root := &cobra.Command{
		Use:           "coxswain",
		Short:         "A Kubernetes control plane in miniature",
		Version:       apiserver.Version,
		SilenceUsage:  true,
		SilenceErrors: true,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkFlags(cmd.Flags()); err != nil {
				return err
			}
			return setLogger(cmd.ErrOrStderr(), level, format)
		},
	}
	root.PersistentFlags().StringVar(&level, "log-level", "warn",
		"least severe messages to log: debug, info, warn or error")
	root.PersistentFlags().StringVar(&format, "logging-format", "text", "form of log lines: text or json")
	root.AddCommand(newUp(), newAPIServer(), newControllers(), newScheduler(), newNode(), newProxy(), newDNS(),
		newIngress(), newCNI(), newEtcd(), certs.New(), newHealth(), newVersion(), newAssets(), newTestServer())
	root.SetHelpCommand(newHelp())
	root.InitDefaultCompletionCmd()
	for _, cmd := range root.Commands() {
		refuseUnknown(cmd)
	}
	return root
}

// setLogger sets the process's logger, for our own code and for client-go.
func setLogger(w io.Writer, level, format string) error {
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err != nil {
		return fmt.Errorf("--log-level: %w", err)
	}
	options := &slog.HandlerOptions{Level: l}
	var handler slog.Handler
	switch format {
	case "text":
		handler = slog.NewTextHandler(w, options)
	case "json":
		handler = slog.NewJSONHandler(w, options)
	default:
		return errors.New(`--logging-format: must be "text" or "json"`)
	}
	slog.SetDefault(slog.New(handler))
	klog.SetLogger(logr.FromSlogHandler(handler))
	return nil
}
