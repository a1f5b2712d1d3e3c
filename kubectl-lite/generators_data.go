package kubectllite

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"unicode/utf8"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	kubectlutil "k8s.io/kubectl/pkg/util"
	"k8s.io/kubectl/pkg/util/hash"
)

// dataSources are the flags from which config maps and secrets are filled.
type dataSources struct {
	files, literals, envFiles []string
	appendHash                bool
}

func (d *dataSources) addFlags(flags *pflag.FlagSet, noun string) {
	flags.StringSliceVar(&d.files, "from-file", nil, "Key file can be specified using its file path, in which case file basename will be used as "+noun+" key, or optionally with a key and file path, in which case the given key will be used.  Specifying a directory will iterate each named file in the directory whose basename is a valid "+noun+" key.")
	flags.StringArrayVar(&d.literals, "from-literal", nil, "Specify a key and literal value to insert in "+noun+" (i.e. mykey=somevalue)")
	flags.StringSliceVar(&d.envFiles, "from-env-file", nil, "Specify the path to a file to read lines of key=val pairs to create a "+noun+".")
	flags.BoolVar(&d.appendHash, "append-hash", false, "Append a hash of the "+noun+" to its name.")
}

// read collects all keys; two of the same name are an error.
func (d *dataSources) read(noun, name string) (map[string][]byte, error) {
	if len(d.envFiles) > 0 && (len(d.files) > 0 || len(d.literals) > 0) {
		return nil, errors.New("from-env-file cannot be combined with from-file or from-literal")
	}
	data := map[string][]byte{}
	add := func(key string, value []byte) error {
		if faults := validation.IsConfigMapKey(key); len(faults) > 0 {
			return fmt.Errorf("%q is not a valid key name for a %s: %s", key, noun, strings.Join(faults, ","))
		}
		if _, taken := data[key]; taken {
			return fmt.Errorf("cannot add key %q, another key by that name already exists in Data for %s %q", key, noun, name)
		}
		data[key] = value
		return nil
	}
	for _, literal := range d.literals {
		key, value, err := kubectlutil.ParseLiteralSource(literal)
		if err != nil {
			return nil, err
		}
		if err := add(key, []byte(value)); err != nil {
			return nil, err
		}
	}
	for _, source := range d.files {
		if err := readSource(source, add); err != nil {
			return nil, err
		}
	}
	for _, path := range d.envFiles {
		if err := readEnvFile(path, add); err != nil {
			return nil, err
		}
	}
	return data, nil
}

// readSource adds a file, "key=file", or every regular file of a folder.
func readSource(source string, add func(string, []byte) error) error {
	key, path, err := kubectlutil.ParseFileSource(source)
	if err != nil {
		return err
	}
	info, err := os.Stat(path)
	if err != nil {
		return readError(path, err)
	}
	if !info.IsDir() {
		value, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return add(key, value)
	}
	if strings.Contains(source, "=") {
		return errors.New("cannot give a key name for a directory path")
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return fmt.Errorf("error listing files in %s: %v", path, err)
	}
	for _, entry := range entries {
		if !entry.Type().IsRegular() {
			continue
		}
		value, err := os.ReadFile(filepath.Join(path, entry.Name()))
		if err != nil {
			return err
		}
		if err := add(entry.Name(), value); err != nil {
			return err
		}
	}
	return nil
}

func readError(path string, err error) error {
	var at *os.PathError
	if errors.As(err, &at) {
		err = at.Err
	}
	return fmt.Errorf("error reading %s: %v", path, err)
}

// readEnvFile adds the lines KEY=value of a file. A KEY alone takes its value from this process's environment; # begins a
// comment.
func readEnvFile(path string, add func(string, []byte) error) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return readError(path, err)
	}
	lines := bufio.NewScanner(bytes.NewReader(bytes.TrimPrefix(text, []byte("\xef\xbb\xbf"))))
	for n := 1; lines.Scan(); n++ {
		if !utf8.Valid(lines.Bytes()) {
			return fmt.Errorf("env file %s contains invalid utf8 bytes at line %d: %v", path, n, lines.Bytes())
		}
		line := strings.TrimLeft(lines.Text(), " \t")
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		key, value, given := strings.Cut(line, "=")
		if faults := validation.IsEnvVarName(key); len(faults) > 0 {
			return fmt.Errorf("%q is not a valid key name: %s", key, strings.Join(faults, ";"))
		}
		if !given {
			value = os.Getenv(key)
		}
		if err := add(key, []byte(value)); err != nil {
			return err
		}
	}
	return lines.Err()
}

func configMapFlags(flags *pflag.FlagSet, _ *session) build {
	sources := &dataSources{}
	sources.addFlags(flags, "configmap")
	return func(name string, _ []string) (runtime.Object, error) {
		data, err := sources.read("ConfigMap", name)
		if err != nil {
			return nil, err
		}
		obj := &corev1.ConfigMap{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"}, ObjectMeta: metav1.ObjectMeta{Name: name}}
		for key, value := range data {
			if utf8.Valid(value) {
				if obj.Data == nil {
					obj.Data = map[string]string{}
				}
				obj.Data[key] = string(value)
				continue
			}
			if obj.BinaryData == nil {
				obj.BinaryData = map[string][]byte{}
			}
			obj.BinaryData[key] = value
		}
		if sources.appendHash {
			sum, err := hash.ConfigMapHash(obj)
			if err != nil {
				return nil, err
			}
			obj.Name += "-" + sum
		}
		return obj, nil
	}
}

// secretGenerators are the subcommands of create secret.
var secretGenerators = []generator{
	{
		use: "generic NAME [--type=string] [--from-file=[key=]source] [--from-literal=key1=value1]", short: "Create a secret from a local file, directory, or literal value",
		resource: coreResource("secrets"), failure: "failed to create secret", flags: genericSecretFlags,
	},
	{
		use: "tls NAME --cert=path/to/cert/file --key=path/to/key/file", short: "Create a TLS secret",
		resource: coreResource("secrets"), failure: "failed to create secret", flags: tlsSecretFlags,
	},
	{
		use: "docker-registry NAME --docker-username=user --docker-password=password --docker-email=email", short: "Create a secret for use with a Docker registry",
		resource: coreResource("secrets"), failure: "failed to create secret", flags: dockerSecretFlags,
	},
}

func newSecret(name string, kind corev1.SecretType, data map[string][]byte, appendHash bool) (runtime.Object, error) {
	obj := &corev1.Secret{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"},
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Type:       kind, Data: data,
	}
	if appendHash {
		sum, err := hash.SecretHash(obj)
		if err != nil {
			return nil, err
		}
		obj.Name += "-" + sum
	}
	return obj, nil
}

func genericSecretFlags(flags *pflag.FlagSet, _ *session) build {
	sources := &dataSources{}
	sources.addFlags(flags, "secret")
	kind := flags.String("type", "", "The type of secret to create")
	return func(name string, _ []string) (runtime.Object, error) {
		data, err := sources.read("Secret", name)
		if err != nil {
			return nil, err
		}
		return newSecret(name, corev1.SecretType(*kind), data, sources.appendHash)
	}
}
