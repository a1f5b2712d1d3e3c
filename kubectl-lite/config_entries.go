package kubectllite

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	cmdutil "k8s.io/kubectl/pkg/cmd/util"
)

// entryFlags are the flags of a command that sets an entry of the kubeconfig: those that were given count, the others leave
// what there is. Flags such as --server, which every command has, say here what to write.
type entryFlags struct{ *pflag.FlagSet }

// given is the value of a flag and whether the user set it.
func (f entryFlags) given(name string) (string, bool) {
	flag := f.Lookup(name)
	return flag.Value.String(), flag.Changed
}

// take sets the field where the flag was given.
func (f entryFlags) take(name string, field *string) (taken bool) {
	value, taken := f.given(name)
	if taken {
		*field = value
	}
	return taken
}

// takeFile sets the path of a file, or with embed its content, and clears the other of the two.
func (f entryFlags) takeFile(name string, embed bool, path *string, content *[]byte) (bool, error) {
	value, taken := f.given(name)
	if !taken {
		return false, nil
	}
	if embed {
		text, err := os.ReadFile(value)
		if err != nil {
			return true, fmt.Errorf("could not stat %s file %s: %v", name, value, err)
		}
		*path, *content = "", text
		return true, nil
	}
	absolute, err := filepath.Abs(value)
	if err != nil {
		return true, err
	}
	*path = absolute
	if value != "" {
		*content = nil
	}
	return true, nil
}

func newSetCluster(s *session) *cobra.Command {
	var embed bool
	cmd := &cobra.Command{
		Use:   "set-cluster NAME [--server=server] [--certificate-authority=path/to/certificate/authority] [--insecure-skip-tls-verify=true] [--tls-server-name=example.com]",
		Short: "Set a cluster entry in kubeconfig", DisableFlagsInUseLine: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return helpErrorf(cmd, "Unexpected args: %v", args)
			}
			if args[0] == "" {
				return errors.New("you must specify a non-empty cluster name")
			}
			return s.changeConfig(true, func(config *clientcmdapi.Config) (string, error) {
				cluster := config.Clusters[args[0]]
				if cluster == nil {
					cluster = clientcmdapi.NewCluster()
				}
				config.Clusters[args[0]] = cluster
				return fmt.Sprintf("Cluster %q set.", args[0]), setCluster(cluster, entryFlags{cmd.Flags()}, embed)
			})
		},
	}
	cmd.Flags().BoolVar(&embed, "embed-certs", false, "embed-certs for the cluster entry in kubeconfig")
	cmd.Flags().String("proxy-url", "", "proxy-url for the cluster entry in kubeconfig")
	return cmd
}

func setCluster(cluster *clientcmdapi.Cluster, flags entryFlags, embed bool) error {
	authority, _ := flags.given("certificate-authority")
	insecure, insecureGiven := flags.given("insecure-skip-tls-verify")
	switch {
	case insecure == "true" && authority != "":
		return errors.New("you cannot specify a certificate authority and insecure mode at the same time")
	case embed && authority == "":
		return errors.New("you must specify a --certificate-authority to embed")
	}
	if flags.take("server", &cluster.Server) {
		cluster.TLSServerName = "" // it belonged to the server of before
	}
	flags.take("tls-server-name", &cluster.TLSServerName)
	flags.take("proxy-url", &cluster.ProxyURL)
	if insecureGiven {
		cluster.InsecureSkipTLSVerify = insecure == "true"
	}
	if cluster.InsecureSkipTLSVerify && insecureGiven {
		cluster.CertificateAuthority, cluster.CertificateAuthorityData = "", nil
	}
	taken, err := flags.takeFile("certificate-authority", embed, &cluster.CertificateAuthority, &cluster.CertificateAuthorityData)
	if taken && authority != "" {
		cluster.InsecureSkipTLSVerify = false
	}
	return err
}

// credentialOptions are the flags of set-credentials that no other command has.
type credentialOptions struct {
	embed                 bool
	provider              string
	providerArgs, execEnv []string
	execArgs              []string
}

func newSetCredentials(s *session) *cobra.Command {
	o := &credentialOptions{}
	cmd := &cobra.Command{
		Use:   "set-credentials NAME [--client-certificate=path/to/certfile] [--client-key=path/to/keyfile] [--token=bearer_token] [--username=basic_user] [--password=basic_password] [--exec-command=exec_command] …",
		Short: "Set a user entry in kubeconfig", DisableFlagsInUseLine: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return helpErrorf(cmd, "unexpected args: %v", args)
			}
			if args[0] == "" {
				return errors.New("you must specify a non-empty user name")
			}
			return s.changeConfig(true, func(config *clientcmdapi.Config) (string, error) {
				user := config.AuthInfos[args[0]]
				if user == nil {
					user = clientcmdapi.NewAuthInfo()
				}
				config.AuthInfos[args[0]] = user
				return fmt.Sprintf("User %q set.", args[0]), o.apply(user, entryFlags{cmd.Flags()})
			})
		},
	}
	flags := cmd.Flags()
	flags.BoolVar(&o.embed, "embed-certs", false, "Embed client cert/key for the user entry in kubeconfig")
	flags.StringVar(&o.provider, "auth-provider", "", "Auth provider for the user entry in kubeconfig")
	flags.StringSliceVar(&o.providerArgs, "auth-provider-arg", nil, "'key=value' arguments for the auth provider")
	flags.String("exec-command", "", "Command for the exec credential plugin for the user entry in kubeconfig")
	flags.String("exec-api-version", "", "API version of the exec credential plugin for the user entry in kubeconfig")
	flags.String("exec-interactive-mode", "", "InteractiveMode of the exec credentials plugin for the user entry in kubeconfig")
	flags.Bool("exec-provide-cluster-info", false, "ProvideClusterInfo of the exec credentials plugin for the user entry in kubeconfig")
	flags.StringSliceVar(&o.execArgs, "exec-arg", nil, "New arguments for the exec credential plugin command for the user entry in kubeconfig")
	flags.StringArrayVar(&o.execEnv, "exec-env", nil, "'key=value' environment values for the exec credential plugin")
	return cmd
}

func (o *credentialOptions) apply(user *clientcmdapi.AuthInfo, flags entryFlags) error {
	if err := o.validate(flags); err != nil {
		return err
	}
	if _, err := flags.takeFile("client-certificate", o.embed, &user.ClientCertificate, &user.ClientCertificateData); err != nil {
		return err
	}
	if _, err := flags.takeFile("client-key", o.embed, &user.ClientKey, &user.ClientKeyData); err != nil {
		return err
	}
	byToken := flags.take("token", &user.Token) && user.Token != ""
	byName := flags.take("username", &user.Username) && user.Username != ""
	byName = flags.take("password", &user.Password) && user.Password != "" || byName
	switch { // one way to log in makes an end of the other
	case byToken && !byName:
		user.Username, user.Password = "", ""
	case byName && !byToken:
		user.Token = ""
	}
	if err := o.applyProvider(user); err != nil {
		return err
	}
	return o.applyExec(user, flags)
}

func (o *credentialOptions) validate(flags entryFlags) error {
	value := func(name string) string { v, _ := flags.given(name); return v }
	switch mode := value("exec-interactive-mode"); {
	case value("token") != "" && value("username")+value("password") != "":
		return errors.New("you cannot specify more than one authentication method at the same time: --token, --username/--password")
	case o.embed && value("client-certificate") == "" && value("client-key") == "":
		return errors.New("you must specify a --client-certificate or --client-key to embed")
	case mode != "" && mode != "IfAvailable" && mode != "Never" && mode != "Always":
		return errors.New("invalid interactive mode type, can be only IfAvailable, Never, Always")
	}
	return nil
}

func (o *credentialOptions) applyProvider(user *clientcmdapi.AuthInfo) error {
	if o.provider != "" && (user.AuthProvider == nil || user.AuthProvider.Name != o.provider) {
		user.AuthProvider = &clientcmdapi.AuthProviderConfig{Name: o.provider}
	}
	set, removed, err := cmdutil.ParsePairs(o.providerArgs, "auth-provider-arg", true)
	if err != nil || user.AuthProvider == nil {
		return err
	}
	if user.AuthProvider.Config == nil {
		user.AuthProvider.Config = map[string]string{}
	}
	for _, key := range removed {
		delete(user.AuthProvider.Config, key)
	}
	maps.Copy(user.AuthProvider.Config, set)
	return nil
}

// applyExec changes the program that fetches credentials, where there is one.
func (o *credentialOptions) applyExec(user *clientcmdapi.AuthInfo, flags entryFlags) error {
	if command, given := flags.given("exec-command"); given {
		if user.Exec == nil {
			user.Exec = &clientcmdapi.ExecConfig{}
		}
		user.Exec.Command, user.Exec.Args = command, nil
	}
	set, removed, err := cmdutil.ParsePairs(o.execEnv, "exec-env", true)
	if err != nil || user.Exec == nil {
		return err
	}
	program := user.Exec
	flags.take("exec-api-version", &program.APIVersion)
	flags.take("exec-interactive-mode", (*string)(&program.InteractiveMode))
	if value, given := flags.given("exec-provide-cluster-info"); given {
		program.ProvideClusterInfo = value == "true"
	}
	if len(o.execArgs) > 0 {
		program.Args = o.execArgs
	}
	program.Env = slices.DeleteFunc(program.Env, func(v clientcmdapi.ExecEnvVar) bool { return slices.Contains(removed, v.Name) })
	for _, key := range slices.Sorted(maps.Keys(set)) {
		at := slices.IndexFunc(program.Env, func(v clientcmdapi.ExecEnvVar) bool { return v.Name == key })
		if at < 0 {
			program.Env = append(program.Env, clientcmdapi.ExecEnvVar{Name: key, Value: set[key]})
			continue
		}
		program.Env[at].Value = set[key]
	}
	return nil
}
