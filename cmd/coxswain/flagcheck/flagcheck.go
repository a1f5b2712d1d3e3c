// Package flagcheck checks the values of flags before a command starts anything, so that a mistake is reported at once
// and by the flag's name.
//
// [Check] knows the rules that hold wherever a flag of a name or type exists: numbers are not negative, a port is a
// port (forms is the table), and a file exists (files.go). Each command checks its own further rules.
package flagcheck

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/coxswain-dev/coxswain/apiserver"
	"github.com/coxswain-dev/coxswain/apiserver/admission"
	"github.com/coxswain-dev/coxswain/apiserver/authz"
	"github.com/coxswain-dev/coxswain/cmd/coxswain/usage"
	"github.com/coxswain-dev/coxswain/controllers"
	"github.com/coxswain-dev/coxswain/internal/near"
)

// negatives has the flags that accept negative numbers.
var negatives = map[string]bool{"pod-max-pids": true, "terminated-pod-gc-threshold": true}

// MayBeNegative reports whether a flag accepts negative numbers.
func MayBeNegative(flag string) bool { return negatives[flag] }

// forms has checks of values by the flags' names. They apply to each element of a list.
var forms = map[string]func(string) error{
	"tls-san": isHost, "etcd-san": isHost,
	"bind-address": isAddress, "address": isAddress, "node-ip": isAddress,
	"metrics-bind-address": ListenAddress,
	"secure-port":          isPort, "port": isPort,
	"node-prefix":  isNodePrefix,
	"etcd-servers": isServer,

	"service-cluster-ip-range": isCIDR, "cluster-cidr": isCIDR, "forwarded-headers-from": isCIDR,

	"max-request-memory": isRequestMemory,

	"authorization-mode":       isAuthorizationMode,
	"enable-admission-plugins": isAdmissionPlugin, "disable-admission-plugins": isAdmissionPlugin,
	"controllers": isController,
}

// Check returns the errors, with the flags' names, of values that are invalid for every command, by the flags' types
// and names, and of files that cannot be read. It does not check defaults.
func Check(fs *pflag.FlagSet) error {
	var failures []error
	fs.Visit(func(f *pflag.Flag) {
		if err := checkFlag(f); err != nil {
			failures = append(failures, fmt.Errorf("--%s: %w", f.Name, err))
		}
	})
	return errors.Join(append(failures, checkFiles(fs))...)
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

// ListenAddress accepts an address with a port, or no address.
func ListenAddress(text string) error {
	if text == "" {
		return nil
	}
	_, port, err := net.SplitHostPort(text)
	if err != nil {
		return fmt.Errorf("%q is not an address with a port, such as 127.0.0.1:8080", text)
	}
	return isPort(port)
}

func isPort(text string) error {
	if n, err := strconv.Atoi(text); err != nil || n < 0 || n > 65535 {
		return fmt.Errorf("%s is not a port, 0 to 65535", text)
	}
	return nil
}

func isCIDR(text string) error {
	if _, err := netip.ParsePrefix(strings.TrimSpace(text)); err != nil {
		return fmt.Errorf("%q is not a CIDR, such as 10.96.0.0/16", text)
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

func isAuthorizationMode(text string) error {
	if text == "ABAC" {
		return errors.New("ABAC is refused: this server has no authorization by policy files, which only a restart " +
			"could change; RBAC has Roles, and Webhook asks a program of yours")
	}
	return usage.OneOf(text, authz.TypeAlwaysAllow, authz.TypeAlwaysDeny, authz.TypeNode, authz.TypeRBAC,
		authz.TypeWebhook)
}

func isAdmissionPlugin(text string) error {
	var names []string
	for _, r := range admission.Table {
		names = append(names, r.Name)
	}
	return oneOfMany(text, "admission plugin", names)
}

func isController(text string) error {
	name := strings.TrimPrefix(text, "-")
	if name == "*" || controllers.Known(name) {
		return nil
	}
	return oneOfMany(name, "controller", controllers.Names())
}

// oneOfMany returns an error if a text is not one of many names. It names near ones.
func oneOfMany(text, noun string, names []string) error {
	for _, name := range names {
		if name == text {
			return nil
		}
	}
	if closest := near.Names(text, names); len(closest) > 0 {
		return fmt.Errorf("there is no %s %q; did you mean %s?", noun, text, near.List(closest))
	}
	return fmt.Errorf("there is no %s %q; --help lists them", noun, text)
}
