package kubectllite

import (
	"encoding/base64"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// changeConfig reads the kubeconfig, changes it, writes it back, and says what was done.
func (s *session) changeConfig(relativize bool, change func(*clientcmdapi.Config) (done string, err error)) error {
	config, err := s.kubeconfig().GetStartingConfig()
	if err != nil {
		return err
	}
	done, err := change(config)
	if err != nil {
		return err
	}
	if err := clientcmd.ModifyConfig(s.kubeconfig(), *config, relativize); err != nil {
		return err
	}
	fmt.Fprintln(s.Out, done)
	return nil
}

// kubeconfigFile is the file that a message speaks of.
func (s *session) kubeconfigFile() string {
	if access := s.kubeconfig(); access.IsExplicitFile() {
		return access.GetExplicitFile()
	}
	return s.kubeconfig().GetDefaultFilename()
}

func newSetProperty(s *session) *cobra.Command {
	var rawBytes bool
	cmd := &cobra.Command{
		Use: "set PROPERTY_NAME PROPERTY_VALUE", Short: "Set an individual value in a kubeconfig file", DisableFlagsInUseLine: true,
		Example: `  kubectl-lite config set contexts.staging.namespace shop
  kubectl-lite config set clusters.staging.server https://10.0.0.1:6443`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) != 2 {
				return helpErrorf(cmd, "Unexpected args: %v", args)
			}
			if args[1] == "" {
				return errors.New("you cannot use set to unset a property")
			}
			return s.changeConfig(false, func(config *clientcmdapi.Config) (string, error) {
				p := &property{value: args[1], rawBytes: rawBytes}
				return fmt.Sprintf("Property %q set.", args[0]), p.change(config, args[0])
			})
		},
	}
	cmd.Flags().BoolVar(&rawBytes, "set-raw-bytes", false, "When writing a []byte PROPERTY_VALUE, write the given string directly without base64 decoding.")
	return cmd
}

func newUnsetProperty(s *session) *cobra.Command {
	return &cobra.Command{
		Use: "unset PROPERTY_NAME", Short: "Unset an individual value in a kubeconfig file", DisableFlagsInUseLine: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return helpErrorf(cmd, "Unexpected args: %v", args)
			}
			return s.changeConfig(false, func(config *clientcmdapi.Config) (string, error) {
				p := &property{unset: true}
				return fmt.Sprintf("Property %q unset.", args[0]), p.change(config, args[0])
			})
		},
	}
}

func newRenameContext(s *session) *cobra.Command {
	return &cobra.Command{
		Use: "rename-context CONTEXT_NAME NEW_NAME", Short: "Rename a context from the kubeconfig file", DisableFlagsInUseLine: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) != 2 {
				return helpErrorf(cmd, "Unexpected args: %v", args)
			}
			from, to := args[0], args[1]
			if to == "" {
				return errors.New("You must specify a new non-empty context name") //nolint:staticcheck // kubectl's words
			}
			return s.changeConfig(true, func(config *clientcmdapi.Config) (string, error) {
				context, there := config.Contexts[from]
				if !there {
					return "", fmt.Errorf("cannot rename the context %q, it's not in %s", from, s.kubeconfigFile())
				}
				if _, taken := config.Contexts[to]; taken {
					return "", fmt.Errorf("cannot rename the context %q, the context %q already exists in %s", from, to, s.kubeconfigFile())
				}
				config.Contexts[to] = context
				delete(config.Contexts, from)
				if config.CurrentContext == from {
					config.CurrentContext = to
				}
				return fmt.Sprintf("Context %q renamed to %q.", from, to), nil
			})
		},
	}
}

// property is one value in a kubeconfig that config set and unset reach by its path, such as
// "clusters.my.cluster.server". Names may have dots: a name ends where a field of what it names begins.
type property struct {
	value    string
	rawBytes bool
	unset    bool
}

func (p *property) change(config *clientcmdapi.Config, path string) error {
	return p.walk(reflect.ValueOf(config).Elem(), strings.Split(path, "."), path)
}

// walk changes what the rest of the path leads to from here.
func (p *property) walk(at reflect.Value, rest []string, path string) error {
	if len(rest) > 0 && at.Kind() != reflect.Struct && at.Kind() != reflect.Map && at.Kind() != reflect.Pointer {
		return fmt.Errorf("unable to parse %v after %v", path, strings.TrimSuffix(path, "."+strings.Join(rest, ".")))
	}
	switch at.Kind() {
	case reflect.Pointer:
		if at.IsNil() {
			at.Set(reflect.New(at.Type().Elem()))
		}
		return p.walk(at.Elem(), rest, path)
	case reflect.Struct:
		return p.intoStruct(at, rest, path)
	case reflect.Map:
		return p.intoMap(at, rest, path)
	case reflect.String:
		at.SetString(p.value)
	case reflect.Bool:
		return p.setBool(at)
	case reflect.Slice:
		return p.setBytes(at)
	default:
		return fmt.Errorf("unrecognized type: %v", at.Kind())
	}
	return nil
}

func (p *property) intoStruct(at reflect.Value, rest []string, path string) error {
	if len(rest) == 0 {
		return fmt.Errorf("unable to parse %v: it is no single value", path)
	}
	i := slices.Index(fieldNames(at.Type()), rest[0])
	if i < 0 {
		return fmt.Errorf("unable to parse %v after %v", path, strings.TrimSuffix(path, strings.Join(rest, ".")))
	}
	field := at.Field(i)
	if p.unset && len(rest) == 1 {
		field.SetZero()
		return nil
	}
	return p.walk(field, rest[1:], path)
}

func (p *property) intoMap(at reflect.Value, rest []string, path string) error {
	if len(rest) == 0 {
		return fmt.Errorf("can't set a map to a value: %v", at)
	}
	element := at.Type().Elem()
	n := len(rest)
	if element.Kind() == reflect.Pointer {
		known := fieldNames(element.Elem())
		if end := slices.IndexFunc(rest[1:], func(part string) bool { return slices.Contains(known, part) }); end >= 0 {
			n = end + 1
		}
	}
	key := reflect.ValueOf(strings.Join(rest[:n], "."))
	if p.unset && n == len(rest) {
		at.SetMapIndex(key, reflect.Value{})
		return nil
	}
	if at.IsNil() {
		at.Set(reflect.MakeMap(at.Type()))
	}
	present := at.MapIndex(key)
	if !present.IsValid() && p.unset {
		return fmt.Errorf("current map key `%v` is invalid", key)
	}
	value := reflect.New(element).Elem()
	if present.IsValid() {
		value.Set(present)
	}
	if n == len(rest) && element.Kind() == reflect.Pointer {
		return fmt.Errorf("unable to parse %v: it is no single value", path)
	}
	if err := p.walk(value, rest[n:], path); err != nil {
		return err
	}
	at.SetMapIndex(key, value)
	return nil
}

func (p *property) setBool(at reflect.Value) error {
	if p.unset {
		at.SetBool(false)
		return nil
	}
	on, err := strconv.ParseBool(p.value)
	if err != nil {
		return err
	}
	at.SetBool(on)
	return nil
}

func (p *property) setBytes(at reflect.Value) error {
	if inner := at.Type().Elem().Kind(); inner != reflect.Uint8 {
		return fmt.Errorf("unrecognized slice type. %v", inner)
	}
	if p.rawBytes {
		at.SetBytes([]byte(p.value))
		return nil
	}
	text, err := base64.StdEncoding.DecodeString(p.value)
	if err != nil {
		return fmt.Errorf("error decoding input value: %v", err)
	}
	at.SetBytes(text)
	return nil
}

// fieldNames are the names that a struct's fields have in the file.
func fieldNames(t reflect.Type) []string {
	names := make([]string, t.NumField())
	for i := range names {
		names[i], _, _ = strings.Cut(t.Field(i).Tag.Get("json"), ",")
	}
	return names
}
