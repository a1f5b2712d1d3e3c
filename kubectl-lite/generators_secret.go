package kubectllite

import (
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

func tlsSecretFlags(flags *pflag.FlagSet, _ *session) build {
	cert := flags.String("cert", "", "Path to PEM encoded public key certificate.")
	key := flags.String("key", "", "Path to private key associated with given certificate.")
	appendHash := flags.Bool("append-hash", false, "Append a hash of the secret to its name.")
	return func(name string, _ []string) (runtime.Object, error) {
		if *cert == "" || *key == "" {
			return nil, errors.New("key and cert must be specified")
		}
		certPEM, err := os.ReadFile(*cert)
		if err != nil {
			return nil, fmt.Errorf("Cannot read file %v, %v", *cert, err) //nolint:staticcheck // kubectl's words
		}
		keyPEM, err := os.ReadFile(*key)
		if err != nil {
			return nil, fmt.Errorf("Cannot read file %v, %v", *key, err) //nolint:staticcheck // kubectl's words
		}
		if _, err := tls.X509KeyPair(certPEM, keyPEM); err != nil {
			return nil, err
		}
		return newSecret(name, corev1.SecretTypeTLS, map[string][]byte{
			corev1.TLSCertKey: certPEM, corev1.TLSPrivateKeyKey: keyPEM,
		}, *appendHash)
	}
}

// registryLogin is one entry of a docker config.json.
type registryLogin struct {
	Username string `json:"username,omitempty"`
	Password string `json:"password,omitempty"`
	Email    string `json:"email,omitempty"`
	Auth     string `json:"auth,omitempty"`
}

func dockerSecretFlags(flags *pflag.FlagSet, _ *session) build {
	var login registryLogin
	flags.StringVar(&login.Username, "docker-username", "", "Username for Docker registry authentication")
	flags.StringVar(&login.Password, "docker-password", "", "Password for Docker registry authentication")
	flags.StringVar(&login.Email, "docker-email", "", "Email for Docker registry")
	server := flags.String("docker-server", "", "Server location for Docker registry")
	file := flags.String("from-file", "", "Path of a docker config.json to take as it is")
	appendHash := flags.Bool("append-hash", false, "Append a hash of the secret to its name.")
	return func(name string, _ []string) (runtime.Object, error) {
		text, err := dockerConfig(*file, *server, login)
		if err != nil {
			return nil, err
		}
		return newSecret(name, corev1.SecretTypeDockerConfigJson, map[string][]byte{corev1.DockerConfigJsonKey: text}, *appendHash)
	}
}

func dockerConfig(file, server string, login registryLogin) ([]byte, error) {
	if file != "" {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		if !json.Valid(text) {
			return nil, fmt.Errorf("%s is no JSON document", file)
		}
		return text, nil
	}
	if login.Username == "" || login.Password == "" || server == "" {
		return nil, errors.New("either --from-file or the combination of --docker-username, --docker-password and --docker-server is required")
	}
	login.Auth = base64.StdEncoding.EncodeToString([]byte(login.Username + ":" + login.Password))
	return json.Marshal(map[string]any{"auths": map[string]registryLogin{server: login}})
}
