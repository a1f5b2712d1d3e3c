package main

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/coxswain-dev/coxswain/apiserver"
)

// negatives has the flags that accept negative numbers.
var negatives = map[string]bool{"pod-max-pids": true, "terminated-pod-gc-threshold": true}

// forms has checks of values by the flags' names. They apply to each element of a list.
var forms = map[string]func(string) error{
	"tls-san": isHost, "etcd-san": isHost,
	"bind-address": isAddress, "address": isAddress, "node-ip": isAddress,
	"metrics-bind-address": isListenAddress,
	"secure-port":          isPort, "port": isPort,
	"node-prefix":  isNodePrefix,
	"etcd-servers": isServer,

	"simulated-run-for": isLifetime,

	"max-request-memory": isRequestMemory,
}

// checkFlags returns the errors, with the flags' names, of values that are invalid for every subcommand, by the flags'
// types and names. It does not check defaults. Each subcommand checks its own rules.
func checkFlags(fs *pflag.FlagSet) error {
	var failures []error
	fs.Visit(func(f *pflag.Flag) {
		if err := checkFlag(f); err != nil {
			failures = append(failures, fmt.Errorf("--%s: %w", f.Name, err))
		}
	})
	return errors.Join(failures...)
}

func checkFlag(f *pflag.Flag) error {
	text := f.Value.String()
	switch f.Value.Type() {
	case "duration", "int", "int32", "int64", "float32", "float64":
		if strings.HasPrefix(text, "-") && !negatives[f.Name] {
			return fmt.Errorf("%s must not be negative", text)
		}
		if strings.HasSuffix(text, "NaN") || strings.HasSuffix(text, "Inf") {
			return fmt.Errorf("%s is not a number", text)
		}
	}
	check := forms[f.Name]
	if check == nil {
		return nil
	}
	values := []string{text}
	if list, ok := f.Value.(pflag.SliceValue); ok {
		values = list.GetSlice()
	}
	for _, value := range values {
		if err := check(value); err != nil {
			return err
		}
	}
	return nil
}

// isHost accepts a DNS name or an IP address, as in a certificate.
func isHost(text string) error {
	if net.ParseIP(text) != nil {
		return nil
	}
	if problems := validation.IsDNS1123Subdomain(strings.ToLower(strings.TrimPrefix(text, "*."))); len(problems) > 0 {
		return fmt.Errorf("%q is neither an IP address nor a DNS name", text)
	}
	return nil
}

func isAddress(text string) error {
	if text != "" && net.ParseIP(text) == nil {
		return fmt.Errorf("%q is not an IP address", text)
	}
	return nil
}

func isListenAddress(text string) error {
	if text == "" {
		return nil
	}
	_, port, err := net.SplitHostPort(text)
	if err != nil {
		return fmt.Errorf("%q is not an address with a port: %w", text, err)
	}
	return isPort(port)
}

func isPort(text string) error {
	if n, err := strconv.Atoi(text); err != nil || n < 0 || n > 65535 {
		return fmt.Errorf("%s is not a port, 0 to 65535", text)
	}
	return nil
}

// isNodePrefix accepts a text that, followed by a number, is a valid name of a Node.
func isNodePrefix(text string) error {
	if problems := validation.IsDNS1123Subdomain(text + "0"); len(problems) > 0 {
		return fmt.Errorf("%q cannot be the beginning of a Node's name: %s", text, problems[0])
	}
	return nil
}

func isServer(text string) error {
	host := text
	if _, rest, found := strings.Cut(text, "://"); found {
		host = rest
	}
	if host == "" || strings.ContainsAny(host, " \t") {
		return fmt.Errorf("%q is not the URL of a server", text)
	}
	return nil
}

// isRequestMemory accepts a memory limit of requests that is sufficient for an object of the largest size, or 0.
func isRequestMemory(text string) error {
	q, err := resource.ParseQuantity(text)
	if err != nil {
		return err
	}
	if n := q.Value(); n != 0 && n < apiserver.LeastRequestMemory {
		return fmt.Errorf("%s is less than %dMi, which replacing an object of the largest size takes; 0 derives it "+
			"from the memory limit", text, apiserver.LeastRequestMemory>>20)
	}
	return nil
}

// refuseUnknown makes an unknown subcommand an error. For commands that only have subcommands, cobra
// would show the help and report success.
func refuseUnknown(cmd *cobra.Command) {
	for _, sub := range cmd.Commands() {
		refuseUnknown(sub)
	}
	if cmd.Runnable() {
		return
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) > 0 {
			return fmt.Errorf("unknown command %q for %q; --help lists them", args[0], cmd.CommandPath())
		}
		return cmd.Help()
	}
	cmd.Args = cobra.ArbitraryArgs
}
