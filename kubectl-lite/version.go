package kubectllite

import (
	"encoding/json"
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"
	utilversion "k8s.io/apimachinery/pkg/util/version"
	"k8s.io/apimachinery/pkg/version"
	"sigs.k8s.io/yaml"

	"github.com/coxswain-dev/coxswain/kubectl-lite/session"
)

// Version is this binary's version, set at link time with -ldflags "-X …/kubectl-lite.Version=…". If it is not set, the
// version of client-go is shown, which determines the version of the API.
var Version string

type versions struct {
	ClientVersion *version.Info `json:"clientVersion,omitempty"`
	ServerVersion *version.Info `json:"serverVersion,omitempty"`
}

func newVersion(s *session.Session) *cobra.Command {
	var clientOnly bool
	var output string
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the client and server version information",
		RunE: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return fmt.Errorf("extra arguments: %v", args)
			}
			if output != "" && output != "json" && output != "yaml" {
				return fmt.Errorf(`--output must be 'yaml' or 'json'`)
			}
			found := versions{ClientVersion: clientVersion()}
			var failed error
			if !clientOnly {
				found.ServerVersion, failed = serverVersion(s)
			}
			if err := printVersions(s, found, output); err != nil {
				return err
			}
			warnOfSkew(s, found)
			return failed
		},
	}
	cmd.Flags().BoolVar(&clientOnly, "client", false, "If true, shows client version only (no server required).")
	cmd.Flags().StringVarP(&output, "output", "o", "", "One of 'yaml' or 'json'.")
	return cmd
}

func serverVersion(s *session.Session) (*version.Info, error) {
	client, err := s.ToDiscoveryClient()
	if err != nil {
		return nil, err
	}
	client.Invalidate()
	return client.ServerVersion()
}

func printVersions(s *session.Session, found versions, output string) error {
	switch output {
	case "json":
		text, err := json.MarshalIndent(found, "", "  ")
		if err != nil {
			return err
		}
		fmt.Fprintln(s.Out, string(text))
	case "yaml":
		text, err := yaml.Marshal(found)
		if err != nil {
			return err
		}
		fmt.Fprint(s.Out, string(text))
	default:
		fmt.Fprintf(s.Out, "Client Version: %s\n", found.ClientVersion.GitVersion)
		if found.ServerVersion != nil {
			fmt.Fprintf(s.Out, "Server Version: %s\n", found.ServerVersion.GitVersion)
		}
	}
	return nil
}

// clientVersion returns the version of this binary, or of its API: client-go v0.A.B belongs to Kubernetes v1.A.B.
func clientVersion() *version.Info {
	info := &version.Info{GitVersion: Version, Compiler: runtime.Compiler, Platform: runtime.GOOS + "/" +
		runtime.GOARCH}
	build, ok := debug.ReadBuildInfo()
	if !ok {
		return info
	}
	info.GoVersion = build.GoVersion
	if info.GitVersion == "" {
		info.GitVersion = libraryVersion()
	}
	if parts := strings.SplitN(strings.TrimPrefix(info.GitVersion, "v"), ".", 3); len(parts) == 3 {
		info.Major, info.Minor = parts[0], parts[1]
	}
	for _, setting := range build.Settings {
		switch setting.Key {
		case "vcs.revision":
			info.GitCommit = setting.Value
		case "vcs.time":
			info.BuildDate = setting.Value
		case "vcs.modified":
			info.GitTreeState = map[string]string{"true": "dirty", "false": "clean"}[setting.Value]
		}
	}
	return info
}

// libraryVersion returns the version of Kubernetes that the libraries of this binary belong to.
func libraryVersion() string {
	build, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	for _, dep := range build.Deps {
		if dep.Path == "k8s.io/client-go" {
			return strings.Replace(dep.Version, "v0.", "v1.", 1)
		}
	}
	return ""
}

// supportedSkew is the number of minor versions that a client may be older or newer than its server.
const supportedSkew = 1

func warnOfSkew(s *session.Session, found versions) {
	if found.ServerVersion == nil {
		return
	}
	client, clientErr := utilversion.ParseSemantic(found.ClientVersion.GitVersion)
	server, serverErr := utilversion.ParseSemantic(found.ServerVersion.GitVersion)
	if clientErr != nil || serverErr != nil {
		return
	}
	apart := int(client.Minor()) - int(server.Minor())
	if client.Major() != server.Major() || max(apart, -apart) > supportedSkew {
		fmt.Fprintf(s.ErrOut, "WARNING: version difference between client (%d.%d) and server (%d.%d) exceeds the "+
			"supported minor version skew of +/-%d\n",
			client.Major(), client.Minor(), server.Major(), server.Minor(), supportedSkew)
	}
}
